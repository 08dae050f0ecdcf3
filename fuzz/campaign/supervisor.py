"""Supervisor: replays what is stored, keeps its crew at work until time is up, and has what they find confirmed as it comes.

It holds nothing that the folder does not: killed at any moment, it goes on from there when it is started again.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from fuzz.campaign.bugs import Bugs, Told
from fuzz.campaign.crew import SILENT_S, End, Hand, Hire, NearHand
from fuzz.campaign.folder import Campaign, Folder, Running, Session, read_json
from fuzz.campaign.shard import Order
from fuzz.campaign.tallies import Shard
from fuzz.fresh import Manner
from fuzz.search import Limits
from targets.protocol import BadInput

TICK_S = 0.1
TRIES_APART = 2
"""A schedule that so many workers did not come to the end of is tried with the target in a process of its own."""
TRIES_MAX = 4
"""A schedule that so many did not come to the end of is put aside."""
EMPTY_DEATHS_MAX = 5
"""So many workers in a row that died before they had judged anything end the campaign: the next one would too."""
OVERTIME_S = 60.0
"""What was found when time was up may be followed up for so long; then it is left for the next session."""


@dataclass
class Supervisor:
    """One session of a campaign.

    Attributes:
        session: The last one of `campaign`; complete at any moment.
        in_a_row: As in `Search`.
        silent_s: A worker that gives no sign of life for so long hangs.
        hire: Starts one.
    """

    folder: Folder
    campaign: Campaign
    manner: Manner
    limits: Limits
    workers: int
    told: Told = field(default_factory=Told)
    in_a_row: int | None = None
    silent_s: float = SILENT_S
    hire: Hire = NearHand
    crew: list[Hand] = field(default_factory=list)
    began_s: float | None = None
    empty_deaths: int = 0

    def __post_init__(self) -> None:
        self.session = Session(workers=self.workers, began_s=time.time())
        self.bugs = Bugs(self.folder, self.campaign, self.manner, self.told)
        self._read: dict[int, tuple[int, Shard]] = {}

    def run(self) -> None:
        """Fuzzes until time is up; Ctrl-C ends it early, and whatever it was at is left for the next session.

        Raises:
            BadInput: where a worker can't build the target, or the disk is full from the beginning.
        """
        self.folder.clear()
        for path in self.folder.shards.glob("*.running.json"):
            self.folder.suspend(int(path.name.partition(".")[0]))
        self.campaign.sessions.append(self.session)
        self.bugs.replay_stored()
        self.bugs.save()
        try:
            while not self._is_over():
                self.man()
                self.tick()
        finally:
            self.session.seconds = self._elapsed_s()
            self._stop()
            self.bugs.save()

    def finish(self) -> None:
        """Confirms what is left; to be called last, also after an interrupt."""
        try:
            self.bugs.collect()
            while self.bugs.confirm():
                time.sleep(TICK_S)
            self.session.ended_s = time.time()
        finally:
            self.bugs.close(self.shards())
            if not self.bugs.has_room:
                self.session.undecided.append("there was no room for all that was found: it is printed")
            self.folder.clear()

    def tick(self) -> None:
        """Looks after everything once."""
        for hand in list(self.crew):
            end = hand.look()
            if self.began_s is None and hand.works:
                self.began_s = time.monotonic()
            if end is not None:
                self.crew.remove(hand)
                self.replace(hand, end)
        self.session.seconds = self._elapsed_s()
        self.bugs.collect()
        self.bugs.confirm()
        self.told.tick(self)
        time.sleep(TICK_S)

    def shards(self) -> list[Shard]:
        """What the shards of this session have done so far."""
        return [shard for shard in map(self.shard, self.session.shards) if shard is not None]

    def shard(self, number: int) -> Shard | None:
        """What a shard has done so far; None while it has not said so."""
        path = self.folder.tally(number)
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        known = self._read.get(number)
        if known is None or known[0] != stamp:
            shard = read_json(path, Shard)
            if shard is None:
                return None
            self._read[number] = known = (stamp, shard)
        return known[1]

    def man(self) -> None:
        """Starts as many workers as are missing, each on a shard that nobody has had."""
        missing = self.workers - len(self.crew)
        for index in range(missing):
            if not self._more():
                return
            waiting = self._waiting()
            hard = [running for running in waiting if running.tries >= TRIES_APART]
            left = self._schedules_left()
            share = None if left is None else -(-left // (missing - index))
            if not self.begin(hard[:1] or waiting, share, apart=bool(hard)):
                return

    def begin(self, again: list[Running], share: int | None, apart: bool) -> bool:
        """Starts a worker. The number of its shard is written down before it begins, so that nobody has it twice.

        Where there is no room for that, nobody begins.

        Raises:
            BadInput: where nobody has begun yet.
        """
        number = self.campaign.next_shard
        self.campaign.next_shard += 1
        self.session.shards.append(number)
        if not self.bugs.save():
            self.campaign.next_shard = self.session.shards.pop()
            if self.began_s is None and not self.crew:
                raise BadInput("--out", "a folder with room for a campaign", self.folder.out)
            return False
        seconds = self.limits.seconds
        order = Order(
            target=self.campaign.target,
            settings=self.campaign.settings,
            seed=self.campaign.seed,
            number=number,
            out=str(self.folder.out.absolute()),
            seconds=None if seconds is None else max(0.001, seconds - self._elapsed_s()),
            schedules=len(again) if apart else None if share is None else max(share, len(again)),
            again=tuple(again),
            in_process=self.manner.in_process and not apart,
            hang_s=self.manner.hang_s,
            in_a_row=self.in_a_row,
            apart=apart,
            path=tuple(sys.path),
        )
        self.crew.append(self.hire(order, self.silent_s))
        return True

    def replace(self, hand: Hand, end: End) -> None:
        """Takes note of a worker that has ended, and of what it was at.

        Raises:
            BadInput: where it could not build the target, or one after another dies.
        """
        number, fate = hand.order.number, hand.fate()
        hand.end()
        if end is End.MISUSED:
            words = " ".join(hand.output().strip().splitlines()[-1:])
            raise BadInput("target", "one that a worker can build", self.campaign.target.target, words)
        self.bugs.stranded(hand.output())
        shard = self.shard(number)
        judged = shard is not None and shard.schedules > 0
        self.empty_deaths = 0 if end is End.DONE or judged else self.empty_deaths + 1
        if end is not End.DONE:
            silent = f"shard {number} began no replay for {self.silent_s:g} s, then it was killed"
            self.session.deaths.append(silent if end is End.HUNG else fate)
            self.told.died(self.session.deaths[-1])
        running = self.folder.suspend(number)
        if running is not None and running.tries >= TRIES_MAX:
            aside = self.folder.give_up(running)
            self.session.undecided.append(f"{aside}: {running.tries} workers did not come to its end")
        self.bugs.save()
        if self.empty_deaths >= EMPTY_DEATHS_MAX:
            rule = "one that a worker lives with"
            raise BadInput("target", rule, self.campaign.target.target, self.session.deaths[-1])

    def _is_over(self) -> bool:
        if self.limits.seconds is not None and self._elapsed_s() >= self.limits.seconds + OVERTIME_S:
            return True
        return not self.crew and not self._more()

    def _more(self) -> bool:
        """Whether there is anything left to begin; not while there is no room for what was found."""
        if not self.bugs.has_room:
            return False
        if self.limits.seconds is not None and self._elapsed_s() >= self.limits.seconds:
            return False
        return self._schedules_left() != 0 or bool(self._waiting())

    def _elapsed_s(self) -> float:
        return 0.0 if self.began_s is None else time.monotonic() - self.began_s

    def _schedules_left(self) -> int | None:
        """How many nobody has been given yet; None where there is no such limit."""
        if self.limits.schedules is None:
            return None
        at_work = {hand.order.number for hand in self.crew}
        done = sum(shard.schedules for shard in self.shards() if shard.number not in at_work)
        return max(0, self.limits.schedules - done - sum(hand.order.schedules or 0 for hand in self.crew))

    def _waiting(self) -> list[Running]:
        """What is pending and nobody is at."""
        taken = {running.schedule.key() for hand in self.crew for running in hand.order.again}
        return [running for running in self.folder.waiting() if running.schedule.key() not in taken]

    def _stop(self) -> None:
        """Has every worker come to an end; what they were at is pending then."""
        for hand in self.crew:
            hand.stop()
        while self.crew:
            for hand in list(self.crew):
                if hand.look() is not None:
                    self.crew.remove(hand)
                    self.bugs.stranded(hand.output())
                    hand.end()
                    self.folder.suspend(hand.order.number)
            time.sleep(TICK_S)
