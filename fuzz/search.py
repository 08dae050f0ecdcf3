"""Search: batches of schedules, judged one by one; each new failure is shrunk, named by its signature, and kept.

Nothing is raised while generating, and the search goes on after a failure. Before a failure counts, its schedule is
replayed: where the same schedule gives other bits on a fresh target, the target is UNSTABLE and no verdict is given.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from fuzz.judge import Judge, Judgement
from fuzz.mechanisms import mechanisms
from fuzz.shrink import Shrunk, shrink
from fuzz.strategies import Space, batches, schedules
from oracle.finding import Finding, Report, Verdict
from targets.protocol import CheckName, Emitted, Factory, Kind, Schedule, Setting, digest, first_departure, submissions

SHRINKS_EACH = 3
"""So many failures of one kind and check are shrunk; later ones are counted."""
REPEAT_EVERY = 50
"""The first schedule and every so-manieth is replayed once more, to see whether the target is deterministic."""


INCIDENTAL = frozenset({"identical_prompt", "leave_while_decoding", "longest_leaves_first", "queued", "rows_named", "wait"})
"""Mechanisms that hardly a minimal schedule is without, or that stand in for another: no part of a signature."""


@dataclass(frozen=True)
class Failure:
    """One finding, shrunk.

    Attributes:
        signature: Kind, check and what happens in the minimal schedule: one bug, one signature.
        trace_digest: Of the minimal schedule's trace, so that a replay can be compared bit for bit.
        found_after: Schedules until the first one that showed it, itself included.
        first: The finding before shrinking, on the schedule as it was generated.
    """

    signature: str
    schedule: Schedule
    finding: Finding
    evaluations: int
    minimal: bool
    trace_digest: str
    found_after: int
    found_after_s: float
    first: Finding | None = None


@dataclass
class Tally:
    """What a search has done so far.

    Attributes:
        mute: The model failed the reactivity gate: that nothing was found means nothing.
    """

    schedules: int = 0
    failing: int = 0
    tokens_checked: int = 0
    seconds: float = 0.0
    mechanisms: Counter[str] = field(default_factory=Counter)
    report: Report = field(default_factory=Report)
    unknown: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)
    crashed_checks: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    mute: bool = False

    @property
    def verdict(self) -> Verdict:
        """FAIL if anything was found, UNKNOWN if something could not be judged."""
        if self.failures:
            return Verdict.FAIL
        undecided = self.unknown or self.unstable or self.crashed_checks or self.mute
        return Verdict.UNKNOWN if undecided else Verdict.PASS


@dataclass(frozen=True)
class Limits:
    """When a search ends: whichever comes first. Seconds run from the first schedule."""

    schedules: int | None = None
    seconds: float | None = None


class Search:
    """One run of the fuzzer on one factory.

    Attributes:
        tally: What has been done; complete at any moment, also after an interrupt.
        enough: Whether a failure ends the run; a campaign goes on after every one.
    """

    def __init__(
        self,
        factory: Factory,
        seed: int,
        limits: Limits,
        settings: dict[str, Setting] | None = None,
        on_failure: Callable[[Failure], None] = lambda _: None,
        on_schedule: Callable[[Tally], None] = lambda _: None,
        checks: tuple[CheckName, ...] = tuple(CheckName),
    ) -> None:
        self.factory = factory
        self.seed = seed
        self.limits = limits
        self.settings = settings or {}
        self.on_failure = on_failure
        self.on_schedule = on_schedule
        self.checks = checks
        self.judge = Judge(factory)
        self.tally = Tally()
        self.enough: Callable[[Failure], bool] = lambda _: False
        self._seen: Counter[tuple[Kind, CheckName]] = Counter()

    async def run(self) -> Tally:
        """Generates and judges until a limit is reached."""
        self.judge.reference(self.settings)  # measured before the clock starts
        self.judge.begin()
        started = time.perf_counter()
        for schedule in itertools.islice(self.generate(), self.limits.schedules):
            await self.one(schedule)
            self.tally.seconds = time.perf_counter() - started
            self.on_schedule(self.tally)
            if self.limits.seconds is not None and self.tally.seconds >= self.limits.seconds:
                break
            if any(map(self.enough, self.tally.failures)):
                break
        return self.tally

    def generate(self) -> Iterator[Schedule]:
        """Endless schedules; the run's own settings win over drawn ones."""
        for schedule in batches(schedules(Space.of(self.factory)), self.seed):
            yield msgspec.structs.replace(schedule, settings={**schedule.settings, **self.settings})

    async def one(self, schedule: Schedule) -> None:
        """Judges one schedule and follows up what is wrong with it."""
        tally = self.tally
        judgement = await self.judge.judge(schedule, self.checks)
        tally.schedules += 1
        tally.tokens_checked += sum(isinstance(event, Emitted) for event in judgement.trace)
        tally.mechanisms.update(mechanisms(schedule, judgement.trace))
        tally.report.add(msgspec.structs.replace(judgement.report, findings=[]))
        tally.unknown += judgement.report.unknown
        tally.crashed_checks += judgement.crashed_checks
        tally.failing += bool(judgement.findings)
        fresh = [finding for finding in judgement.findings if self._seen[finding.kind, finding.check] < SHRINKS_EACH]
        if (fresh or tally.schedules % REPEAT_EVERY == 1) and await self.departs(judgement):
            return
        for finding in fresh:
            if self._seen[finding.kind, finding.check] < SHRINKS_EACH:
                self._seen[finding.kind, finding.check] += 1
                await self.follow_up(schedule, finding)

    async def departs(self, judgement: Judgement) -> bool:
        """Whether a second replay gives another trace: then the target is unstable, and nothing can be said."""
        departure = first_departure(judgement.trace, await self.judge.replay(judgement.schedule))
        if departure is not None:
            self.tally.unstable.append(departure)
        return departure is not None

    async def follow_up(self, schedule: Schedule, finding: Finding) -> None:
        """Shrinks one finding and reports it, unless its signature is known."""
        found_after = self.tally.schedules

        async def evaluate(candidate: Schedule) -> Finding | None:
            return await self.judge.same(candidate, finding.kind, finding.check)

        shrunk = await shrink(schedule, finding, self.factory.knobs, self.settings, evaluate)
        failure = await self.name(shrunk, found_after, finding)
        if failure is not None and all(known.signature != failure.signature for known in self.tally.failures):
            self.tally.failures.append(failure)
            self.on_failure(failure)

    async def name(self, shrunk: Shrunk, found_after: int, first: Finding) -> Failure | None:
        """Judges the minimal schedule once more, thoroughly, and gives the failure its signature."""
        judgement = await self.judge.judge(shrunk.schedule, thorough=True)
        finding = next(
            (
                found
                for found in judgement.findings
                if (found.kind, found.check) == (shrunk.finding.kind, shrunk.finding.check)
            ),
            None,
        )
        if finding is None:
            self.tally.unstable.append("the minimal schedule of a failure passes when it is judged again")
            return None
        request = submissions(shrunk.schedule)[finding.submission or 0]
        if finding.answer and not finding.isolated and self.judge.alphabet.has_all(request.prompt):
            room = self.factory.context_tokens_max(shrunk.schedule.settings)
            isolated = self.judge.reference(shrunk.schedule.settings).greedy(request, room)
            finding = msgspec.structs.replace(finding, isolated=isolated)
        fired = mechanisms(shrunk.schedule, judgement.trace)
        events = " ".join(name for name in sorted(fired) if fired[name] and name not in INCIDENTAL)
        return Failure(
            signature=f"{finding.kind} {finding.check}: {events or 'plain'}",
            schedule=shrunk.schedule,
            finding=finding,
            evaluations=shrunk.evaluations,
            minimal=shrunk.minimal,
            trace_digest=digest(judgement.trace),
            found_after=found_after,
            found_after_s=self.tally.seconds,
            first=first,
        )
