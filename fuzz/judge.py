"""Judge: replays a schedule, puts every check's questions to it, and replays the variants that the checks ask for."""

from __future__ import annotations

import gc
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass

from fuzz.meter import Meter
from fuzz.stage import InProcess, Stage
from oracle.case import Alphabet, Case
from oracle.checks import CHECKS
from oracle.finding import Finding, Report, Verdict
from oracle.reference import Reference
from oracle.rounding import bound
from targets.protocol import CheckName, Factory, Kind, Schedule, Setting, Trace


@dataclass(frozen=True)
class Judgement:
    """A schedule, what happened, and what the checks say of it.

    Attributes:
        crashed_checks: Checks that raised, with the error: the verdict is then at least UNKNOWN.
    """

    schedule: Schedule
    trace: Trace
    report: Report
    crashed_checks: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all checks; one that crashed is unknown, never a pass."""
        return max(self.report.verdict, Verdict.UNKNOWN if self.crashed_checks else Verdict.PASS)

    @property
    def findings(self) -> list[Finding]:
        """Everything wrong, the cheap checks' findings first."""
        return self.report.findings


class Judge:
    """Judges schedules on one factory's targets, with one reference for each precision.

    Attributes:
        stage: Where schedules are played; in this process unless told otherwise.
        replays: Traces made so far, variants included.
        target_meter, reference_meter: Time inside forwards.
    """

    def __init__(self, factory: Factory, stage: Stage | None = None) -> None:
        self.factory = factory
        self.stage = stage or InProcess(factory)
        self.replays = 0
        self.target_meter = Meter()
        self.reference_meter = Meter()
        self.alphabet = Alphabet(factory.vocabulary, factory.special_ids)
        self._references: dict[tuple[Setting, ...], Reference] = {}

    def begin(self) -> None:
        """Counts time inside forwards from now on; what is loaded by now stays, and the collector need not look at it."""
        gc.collect()
        gc.freeze()
        self.target_meter.seconds = self.reference_meter.seconds = 0.0

    @property
    def sees_forwards(self) -> bool:
        """Whether the target's network is within reach of the meters."""
        return self.target_meter.forwards > 0

    def share_outside(self, seconds: float) -> float:
        """The share of these seconds that was not spent inside forwards."""
        inside = self.target_meter.seconds + self.reference_meter.seconds
        return max(0.0, 1 - inside / seconds) if seconds else 0.0

    async def judge(
        self, schedule: Schedule, checks: Collection[CheckName] = tuple(CHECKS), thorough: bool = False
    ) -> Judgement:
        """Replays a schedule on a fresh target and asks `checks`, in order; `thorough` also names sources.

        Raises:
            BadInput: if the schedule's settings are not the target's.
        """
        trace = await self.replay(schedule)
        case = Case(
            schedule=schedule,
            trace=trace,
            control=self.factory.control,
            references=self.reference,
            alphabet=self.alphabet,
            context_tokens_max=self.factory.context_tokens_max(schedule.settings),
            thorough=thorough,
        )
        report, crashed = Report(), []
        for name, check in CHECKS.items():
            if name in checks:
                try:
                    report.add(await self._drive(check(case)))
                except Exception as error:  # a check that crashes must not pass, nor stop the others
                    crashed.append(f"{name}: {type(error).__name__}: {error}")
        return Judgement(schedule, trace, report, tuple(crashed))

    async def same(self, schedule: Schedule, kind: Kind, check: CheckName) -> Finding | None:
        """A finding of this kind by this check in a schedule, or None.

        A leak is convicted by the swap; isolation, which is far cheaper, usually nominates the victim. Only where it does
        not is every request tried as a victim in turn. Residue is asked with every poison, not with one by chance.
        """
        rounds = [(check, check is CheckName.RESIDUE)]
        if check is CheckName.SWAP:
            rounds = [(CheckName.ISOLATION, False), (check, True)]
        for name, thorough in rounds:
            judgement = await self.judge(schedule, [name], thorough)
            for finding in judgement.findings:
                if finding.kind is kind and finding.check is check:
                    return finding
        return None

    async def replay(self, schedule: Schedule, audits: bool = True) -> Trace:
        """One trace on a fresh target; variants, of which no check asks for accounts, go without."""
        self.target_meter.watch(self.factory.module(schedule.settings))
        self.replays += 1
        return await self.stage.play(schedule, audits)

    def reference(self, settings: Mapping[str, Setting]) -> Reference:
        """The reference in the precision of these settings, its rounding bound measured once."""
        key = tuple(settings.get(knob.name, knob.default) for knob in self.factory.knobs if not knob.drawn)
        if key not in self._references:
            network = self.factory.network(settings)
            self._references[key] = Reference(network, bound(network, self.factory.vocabulary))
            self.reference_meter.watch(network)
        return self._references[key]

    async def _drive(self, check: Generator[Schedule, Trace, Report]) -> Report:
        """Feeds a check the traces it asks for."""
        try:
            variant = next(check)
            while True:
                variant = check.send(await self.replay(variant, audits=False))
        except StopIteration as stop:
            report: Report = stop.value
            return report
