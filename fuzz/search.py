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
from typing import Protocol

import msgspec

from fuzz.coverage import Coverage, cycles_of
from fuzz.followup import Failure, FollowUp, Found, signature
from fuzz.history import in_a_row
from fuzz.judge import Judge, Judgement
from fuzz.mechanisms import mechanisms
from fuzz.stage import Renewing, Stage
from fuzz.strategies import Space, batches, schedules
from oracle.checks import ROUTINE
from oracle.finding import Finding, Report, Verdict
from targets.protocol import CheckName, Emitted, Factory, Kind, Schedule, Setting

SHRINKS_EACH = 3
"""So many failures of one kind and check are shrunk where no site is known, and as many tries are made where one is."""
LOOKED_AT_FIRST, LOOKED_AT_EVERY = 20, 5
"""The site of so many failures of one kind and check is looked for, and then of one in so many: a rare bug beside one that
always shows has a chance, and a run that fails throughout still gets on."""
REPEAT_EVERY = 50
"""The first schedule and every so-manieth is replayed once more, to see whether the target is deterministic."""


@dataclass
class Tally:
    """What a search has done so far.

    Attributes:
        coverage: Which grams of life-cycle events were seen.
        mute: The model failed the reactivity gate: that nothing was found means nothing.
        sanitized: Whether the target was asked for its shadow tags.
    """

    schedules: int = 0
    failing: int = 0
    tokens_checked: int = 0
    seconds: float = 0.0
    mechanisms: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    report: Report = field(default_factory=Report)
    unknown: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)
    crashed_checks: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    mute: bool = False
    sanitized: bool = False

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


class Witness(Protocol):
    """Looks on while a search goes on: what it writes down outlives the search."""

    def begins(self, schedule: Schedule) -> None:
        """A schedule is about to be judged."""

    def shows(self, signature: str) -> bool:
        """A finding has this signature; whether somebody else has followed it up, so that this search need not."""

    def settled(self) -> None:
        """All that was wrong with the schedule that began last has been followed up."""


class Nobody:
    """Nobody looks on."""

    def begins(self, schedule: Schedule) -> None:
        """As `Witness.begins`."""

    def shows(self, signature: str) -> bool:
        """As `Witness.shows`."""
        return False

    def settled(self) -> None:
        """As `Witness.settled`."""


def drawn(space: Space, seed: int) -> Iterator[Schedule]:
    """Endless schedules for a target with this space, as a run draws them."""
    return in_a_row(batches(schedules(space), seed), space.in_a_row)


class Search:
    """One run of the fuzzer on one factory.

    Attributes:
        tally: What has been done; complete at any moment, also after an interrupt.
        enough: Whether a failure ends the run; a campaign goes on after every one.
        in_a_row: So many drawn schedules are one, on one target; None for as many as the target says.
    """

    def __init__(
        self,
        factory: Factory,
        seed: int,
        limits: Limits,
        settings: dict[str, Setting] | None = None,
        on_failure: Callable[[Failure], None] = lambda _: None,
        on_schedule: Callable[[Tally], None] = lambda _: None,
        checks: tuple[CheckName, ...] = ROUTINE,
        stage: Stage | None = None,
        draw: Callable[[Space, int], Iterator[Schedule]] = drawn,
        clock: Callable[[], float] = time.perf_counter,
        witness: Witness | None = None,
        in_a_row: int | None = None,
    ) -> None:
        self.factory = factory
        self.seed = seed
        self.limits = limits
        self.settings = settings or {}
        self.on_failure = on_failure
        self.on_schedule = on_schedule
        self.checks = checks
        self.draw = draw
        self.clock = clock
        self.witness = witness or Nobody()
        self.in_a_row = in_a_row
        self.judge = Judge(factory, stage)
        self.tally = Tally(
            sanitized=bool(self.settings.get("sanitize")), coverage=Coverage(cycles_of(factory, self.settings))
        )
        self.enough: Callable[[Failure], bool] = lambda _: False
        self.follow = FollowUp(self.judge, self.settings, checks, clock)
        self.started = clock()
        self._found: Counter[tuple[Kind, CheckName]] = Counter()
        self._seen: Counter[tuple[Kind, CheckName, str]] = Counter()

    async def run(self) -> Tally:
        """Generates and judges until a limit is reached."""
        self.judge.reference(self.settings)  # measured before the clock starts
        self.judge.begin()
        generated = self.generate()
        first = next(generated)
        self.started = self.clock()
        for schedule in itertools.islice(itertools.chain([first], generated), self.limits.schedules):
            await self.one(schedule)
            self.tally.seconds = self.clock() - self.started
            self.on_schedule(self.tally)
            if self.limits.seconds is not None and self.tally.seconds >= self.limits.seconds:
                break
            if any(map(self.enough, self.tally.failures)):
                break
        return self.tally

    def generate(self) -> Iterator[Schedule]:
        """Endless schedules; the run's own settings win over drawn ones."""
        space = Space.of(self.factory)
        if self.in_a_row is not None:
            space = msgspec.structs.replace(space, in_a_row=self.in_a_row)
        for schedule in self.draw(space, self.seed):
            yield msgspec.structs.replace(schedule, settings={**schedule.settings, **self.settings})

    async def one(self, schedule: Schedule) -> None:
        """Judges one schedule and follows up what is wrong with it."""
        tally = self.tally
        self.witness.begins(schedule)
        judgement = await self.judge.judge(schedule, self.checks)
        tally.schedules += 1
        found = Found(schedule, tally.schedules, self.clock() - self.started)
        tally.tokens_checked += sum(isinstance(event, Emitted) for event in judgement.trace)
        tally.mechanisms.update(mechanisms(judgement.schedule, judgement.trace))
        tally.coverage.count(judgement.schedule, judgement.trace)
        tally.report.add(msgspec.structs.replace(judgement.report, findings=[]))
        tally.unknown += judgement.report.unknown
        tally.crashed_checks += judgement.crashed_checks
        tally.failing += bool(judgement.findings)
        findings = [finding for finding in judgement.findings if self._is_looked_at(finding)]
        if findings or tally.schedules % REPEAT_EVERY == 1:
            findings = await self.stable(judgement, findings)
        for finding in findings:
            await self.follow_up(judgement, finding, found)
        self.witness.settled()

    def _is_looked_at(self, finding: Finding) -> bool:
        """Whether a finding's site is looked for: the first ones of a kind and check, then one in so many."""
        self._found[finding.kind, finding.check] += 1
        count = self._found[finding.kind, finding.check]
        return count <= LOOKED_AT_FIRST or count % LOOKED_AT_EVERY == 0

    async def stable(self, judgement: Judgement, findings: list[Finding]) -> list[Finding]:
        """What can be said when the schedule is played again: these findings; nothing; or that the past leaks into it.

        A target that remembers what ran before makes nonsense of every experiment. From the first such finding on, each
        replay has a stage of its own. A target that is not stepped never gives the same trace twice: what is found on it has
        shown in every one of several repeats.
        """
        if not self.factory.control.stepped:
            return findings
        again = await self.judge.ask(judgement.case, [CheckName.REPEAT])
        self.tally.unstable += again.report.unstable
        self.tally.crashed_checks += again.crashed_checks
        if again.findings:
            self.judge.stage = Renewing(self.judge.stage)
            self.tally.failing += not judgement.findings
        return again.findings if again.findings or again.verdict is Verdict.UNKNOWN else findings

    async def follow_up(self, judgement: Judgement, finding: Finding, found: Found) -> None:
        """Shrinks one finding and reports it, unless its like were shrunk before or its signature is known."""
        site = await self.follow.site(judgement, finding)
        if site and self._is_known(signature(finding, site)):
            return
        self._seen[finding.kind, finding.check, site] += 1
        if self._seen[finding.kind, finding.check, site] > SHRINKS_EACH:
            return
        failure = await self.follow.failure(finding, site, found)
        if failure is None:
            self.tally.unstable.append("the minimal schedule of a failure passes when it is judged again")
        elif not self._is_known(failure.signature) and not any(map(failure.is_like, self.tally.failures)):
            self.tally.failures.append(failure)
            self.on_failure(failure)

    def _is_known(self, name: str) -> bool:
        """Whether a failure of this signature has been followed up, by this search or by another one."""
        elsewhere = self.witness.shows(name)
        return elsewhere or any(known.signature == name for known in self.tally.failures)
