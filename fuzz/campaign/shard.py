"""Shard: one search of a campaign, which writes down all it knows as it goes, and can be killed at any moment."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fuzz import repro as repros
from fuzz.campaign.folder import Folder, Running, write_json, write_quickly
from fuzz.campaign.tallies import Sight, shard_of
from fuzz.conductor import run_trio
from fuzz.followup import Failure
from fuzz.search import Limits, Search, Tally, drawn
from fuzz.stage import Stage
from fuzz.strategies import Space
from fuzz.worker import Patience, Worker, stage_for
from targets.protocol import Factory, Schedule, Setting, Trace, check_settings
from targets.registry import TargetSpec, build

TOLD_EVERY_S = 1.0
"""So often a shard says what it has done."""


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker is to do.

    Attributes:
        seed: The campaign's; the shard's own is this plus its number.
        seconds, schedules: When it ends, from its first schedule on; whichever comes first, and never if both are None.
        again: Schedules that others began and did not come to the end of: they come first.
        in_a_row: As in `Search`.
        apart: Plays the target in a process of its own even if it is one of ours: one of `again` ended a worker.
        path: `sys.path` of the supervisor, so that both import the same code.
    """

    target: TargetSpec
    settings: dict[str, Setting]
    seed: int
    number: int
    out: str
    seconds: float | None = None
    schedules: int | None = None
    again: tuple[Running, ...] = ()
    in_process: bool = False
    hang_s: float | None = None
    in_a_row: int | None = None
    apart: bool = False
    path: tuple[str, ...] = ()


class Beating:
    """A stage that gives a sign of life with every replay."""

    def __init__(self, stage: Stage, beat: Callable[[], None]) -> None:
        self.stage = stage
        self.beat = beat
        self.in_process = stage.in_process
        self.last_words = stage.last_words
        self.close = stage.close

    async def play(self, schedule: Schedule, audits: bool = True) -> Trace:
        """As `Stage.play`."""
        self.beat()
        return await self.stage.play(schedule, audits)

    def renewed(self) -> Beating:
        """As `Stage.renewed`."""
        return Beating(self.stage.renewed(), self.beat)


class Diary:
    """What a shard writes down; a `Witness` of its search. A full disk is waited for: what was found is kept until then."""

    def __init__(self, order: Order, folder: Folder) -> None:
        self.order = order
        self.folder = folder
        self.sights: dict[str, Sight] = {}
        self.unsaved: list[repros.Repro] = []
        self.tries = {running.schedule.key(): running.tries for running in order.again}
        self.at = folder.running(order.number)
        self.schedule: Schedule | None = None
        self._known: frozenset[str] = frozenset()
        self._known_stamp = 0
        self._told_s = 0.0

    def begins(self, schedule: Schedule) -> None:
        """As `Witness.begins`."""
        self.schedule = schedule
        tries = self.tries.get(schedule.key(), 0) if self.tries else 0
        try:
            write_quickly(self.at, Running(schedule, tries + 1))
        except OSError:  # a full disk: what is found is more important than where it was
            self.at.unlink(missing_ok=True)

    def shows(self, signature: str) -> bool:
        """As `Witness.shows`."""
        sight = self.sights.setdefault(signature, Sight())
        sight.times += 1
        sight.last_s = time.time()
        return signature in self.known()

    def settled(self) -> None:
        """As `Witness.settled`; not while something that was found in it has no room on the disk."""
        self.save()
        if self.unsaved or self.schedule is None:
            return
        if self.tries and self.tries.pop(self.schedule.key(), 0):
            self.folder.pending_path(self.schedule).unlink(missing_ok=True)
        self.at.unlink(missing_ok=True)

    def known(self) -> frozenset[str]:
        """Signatures that the supervisor knows of."""
        try:
            stamp = os.stat(self.folder.known).st_mtime_ns
            if stamp != self._known_stamp:
                self._known = frozenset(msgspec.json.decode(self.folder.known.read_bytes(), type=list[str]))
                self._known_stamp = stamp
        except FileNotFoundError:
            self._known = frozenset()
        return self._known

    def save(self) -> None:
        """Puts what was found on the disk, as far as there is room."""
        while self.unsaved:
            try:
                repros.save(self.unsaved[0], self.folder.found_by(self.order.number))
            except OSError:
                return
            self.unsaved.pop(0)

    def tell(self, search: Search, now: bool = False) -> None:
        """Says what was done so far, now and then."""
        if not now and time.monotonic() - self._told_s < TOLD_EVERY_S:
            return
        self._told_s = time.monotonic()
        self.save()
        try:
            shard = shard_of(self.order.number, search.tally, search.judge, self.sights)
            write_json(self.folder.tally(self.order.number), shard)
        except OSError as error:  # it is said again in a second
            print(f"{self.folder.out}: {error.strerror}", file=sys.stderr)


def run_shard(order: Order, beat: Callable[[], None]) -> None:
    """Fuzzes until the order says that it is enough. Ctrl-C ends it early; what was at hand is left for the next one.

    Raises:
        BadInput: where the target can't be built.
    """
    factory = build(order.target)
    check_settings(factory.knobs, order.settings)
    folder = Folder(Path(order.out))
    diary = Diary(order, folder)
    search = _search(order, factory, diary, beat)
    beat()
    try:
        search.judge.reference(order.settings)
        diary.tell(search, now=True)
        run_trio(search.run)
    except KeyboardInterrupt:
        pass
    finally:
        diary.tell(search, now=True)
        search.judge.stage.close()
    for repro in diary.unsaved:  # nowhere to put it: whoever reads our output shall have it
        print(f"no room for {repro.id}: {msgspec.json.encode(repro).decode()}", flush=True)


def _search(order: Order, factory: Factory, diary: Diary, beat: Callable[[], None]) -> Search:
    patience = Patience(order.hang_s)
    own = stage_for(order.target, factory, order.in_process, patience)
    stage = Beating(Worker(order.target, patience) if order.apart else own, beat)

    def keep(failure: Failure) -> None:
        bound = search.judge.reference(order.settings).bound
        seed = order.seed + order.number
        diary.unsaved.append(repros.make(failure, order.target, factory, bound, seed))
        diary.save()

    def draw(space: Space, seed: int) -> Iterator[Schedule]:
        return itertools.chain((running.schedule for running in order.again), drawn(space, seed))

    def told(_: Tally) -> None:
        diary.tell(search)

    limits = Limits(order.schedules, order.seconds)
    search = Search(
        factory,
        order.seed + order.number,
        limits,
        order.settings,
        keep,
        told,
        stage=stage,
        draw=draw,
        witness=diary,
        in_a_row=order.in_a_row,
    )
    return search
