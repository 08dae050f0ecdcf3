"""Over HTTP: what went wrong under load, asked for again of the live endpoint, in logical time.

A repro is played a few times, to say how often it shows there. Where the endpoint is all there is (no target to replay in
this process), wrong responses become schedules instead: the clients' timeline, and what of it still goes wrong with fewer
requests. That is no proof of being smallest: it is a schedule that went wrong so many times of so many.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from fuzz.repro import write_atomically
from stress.judging.asking import Endpoint
from stress.judging.verdicts import StoredSchedule
from stress.recording.logical import play
from stress.recording.narrowing import kept
from stress.recording.timeline import variations
from stress.transcript import Exchange
from targets.protocol import Schedule, submissions

TRIES = 5
PLAYS_MAX = 150
"""So many schedules are played for one response."""


class OverHttp:
    """Plays schedules on a live endpoint.

    Attributes:
        is_wrong: Judges what one request heard.
        plays: So far, for one response.
    """

    def __init__(self, endpoint: Endpoint, is_wrong: Callable[[Exchange], bool]) -> None:
        self.endpoint = endpoint
        self.is_wrong = is_wrong
        self.plays = 0

    async def shows(self, schedule: Schedule, tries: int, enough: int | None = None) -> int:
        """How many of so many plays have something wrong in them; stops at `enough`."""
        found = 0
        for _ in range(tries):
            self.plays += 1
            found += any(map(self.is_wrong, await play(schedule, self.endpoint)))
            if found == enough:
                break
        return found

    async def scheduled(self, victim: Exchange, others: Sequence[Exchange]) -> Schedule | None:
        """A schedule of few requests in which something goes wrong; None where none does."""
        self.plays = 0
        for schedule in variations(others, victim, {}):
            if self.plays >= PLAYS_MAX:
                return None
            if await self.shows(schedule, 1):
                return await self._narrow(schedule)
        return None

    async def _narrow(self, schedule: Schedule) -> Schedule:
        """Fewer requests, as long as something goes wrong in one of a few plays."""
        parts = 2
        while self.plays < PLAYS_MAX and (count := len(submissions(schedule))) > 1:
            edges = [count * part // parts for part in range(parts + 1)]
            for first, last in itertools.pairwise(edges):
                candidate = kept(schedule, set(range(count)) - set(range(first, last)))
                if last > first and submissions(candidate) and await self.shows(candidate, TRIES, enough=1):
                    schedule, parts = candidate, max(parts - 1, 2)
                    break
            else:
                if parts >= count:
                    break
                parts = min(2 * parts, count)
        return schedule


async def store(
    over: OverHttp, victims: Iterable[tuple[str, Exchange]], others: Sequence[Exchange], folder: Path, most: int
) -> list[StoredSchedule]:
    """Makes wrong responses schedules in a run's folder, so many at most."""
    found: list[StoredSchedule] = []
    for source, victim in victims:
        if len(found) >= most:
            break
        schedule = await over.scheduled(victim, others)
        if schedule is None:
            continue
        (folder / "schedules").mkdir(exist_ok=True)
        path = folder / "schedules" / f"{hashlib.sha256(schedule.key()).hexdigest()[:12]}.json"
        write_atomically(path, msgspec.json.format(msgspec.json.encode(schedule), indent=1))
        found.append(
            StoredSchedule(
                path=str(path.relative_to(folder)),
                source=source,
                number=victim.number,
                requests=len(submissions(schedule)),
                wrong=await over.shows(schedule, TRIES),
                tries=TRIES,
            )
        )
    return found
