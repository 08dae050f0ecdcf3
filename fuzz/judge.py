"""Judge: replays a schedule, puts every check's questions to it, and replays the variants that the checks ask for."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fuzz.clients import sentence
from fuzz.forwards import Fill, Forwards, slots_told, tokens_fed
from fuzz.meter import Meter
from fuzz.stage import InProcess, Stage
from oracle.case import Accounted, Alphabet, Anew, Ask, Case
from oracle.checks import CHECKS, ROUTINE
from oracle.finding import Finding, Report, Verdict
from oracle.reference import Reference
from oracle.rounding import bound
from targets.protocol import (
    BadInput,
    CheckName,
    Factory,
    Kind,
    Schedule,
    Setting,
    Trace,
    in_full,
    submissions,
    with_ends,
)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Judgement:
    """A schedule, what happened, and what the checks say of it.

    Attributes:
        crashed_checks: Checks that raised, with the error: the verdict is then at least UNKNOWN.
        last_words: Of the target, if its process ended with this replay.
    """

    case: Case
    report: Report
    crashed_checks: tuple[str, ...] = ()
    last_words: tuple[str, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """What was asked, every prompt as it was handed in."""
        return self.case.schedule

    @property
    def trace(self) -> Trace:
        """What happened."""
        return self.case.trace

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
        target_meter, reference_meter: Forwards and the time inside them.
        fill: Of the forwards of what was judged, variants left out.
    """

    def __init__(self, factory: Factory, stage: Stage | None = None) -> None:
        self.factory = factory
        self.stage = stage or InProcess(factory)
        self.replays = 0
        self.target_meter = Meter()
        self.reference_meter = Meter()
        self.fill = Fill()
        self.alphabet = Alphabet(factory.vocabulary, factory.special_ids)
        self._references: dict[tuple[Setting, ...], Reference] = {}

    def begin(self) -> None:
        """Counts time inside forwards from now on; what is loaded by now stays, and the collector need not look at it."""
        gc.unfreeze()  # what an earlier run of this process left there
        gc.collect()
        gc.freeze()
        self.target_meter.seconds = self.reference_meter.seconds = 0.0
        self.fill = Fill()

    def forwards(self) -> Forwards:
        """Those since it began."""
        seen = self.target_meter.forwards > 0
        return Forwards(self.target_meter.seconds, self.reference_meter.seconds, seen, self.fill)

    async def judge(self, schedule: Schedule, checks: Collection[CheckName] = ROUTINE, thorough: bool = False) -> Judgement:
        """Replays a schedule on a fresh target and asks `checks`, in order; `thorough` also names sources.

        Raises:
            BadInput: if the schedule's settings are not the target's.
        """
        seen = self.target_meter
        forwards, rows, places = seen.forwards, seen.rows, seen.places
        trace = await self.replay(schedule)
        last_words = self.stage.last_words()
        case = self.case(schedule, trace, thorough)
        if seen.places > places:
            slots = (seen.forwards - forwards) * slots_told(trace)
            fed = tokens_fed(trace, submissions(case.schedule))
            self.fill.add(Fill(seen.rows - rows if slots else 0, slots, seen.places - places, fed))
        judgement = await self.ask(case, checks)
        return dataclasses.replace(judgement, last_words=last_words)

    def case(self, schedule: Schedule, trace: Trace, thorough: bool = False) -> Case:
        """What the checks may know of a schedule, every prompt as it was handed in, and of its trace."""
        return Case(
            schedule=with_ends(in_full(schedule, trace), self.factory.control.ends),
            trace=trace,
            control=self.factory.control,
            references=self.reference,
            alphabet=self.alphabet,
            context_tokens_max=self.factory.context_tokens_max(schedule.settings),
            thorough=thorough,
        )

    async def ask(self, case: Case, checks: Collection[CheckName]) -> Judgement:
        """Asks `checks` of a trace, in order, and replays the variants they want."""
        report, crashed = Report(), []
        for name, check in CHECKS.items():
            if name in checks:
                try:
                    report.add(await self.drive(check(case)))
                except Exception as error:  # a check that crashes must not pass, nor stop the others
                    crashed.append(f"{name}: {type(error).__name__}: {error}")
        return Judgement(case, report, tuple(crashed))

    async def same(self, schedule: Schedule, kind: Kind, check: CheckName) -> Finding | None:
        """A finding of this kind by this check in a schedule, or None."""
        judgement = await self.look_for(schedule, kind, check)
        return first_of(judgement.findings, kind, check)

    async def look_for(self, schedule: Schedule, kind: Kind, check: CheckName) -> Judgement:
        """Replays a schedule and asks no more than it takes to find this kind by this check.

        A leak is convicted by the swap; isolation, which is far cheaper, usually nominates the victim. Only where it does
        not is every request tried as a victim in turn. Residue is asked with every poison, not with one by chance.
        """
        first = CheckName.ISOLATION if check in (CheckName.SWAP, CheckName.WARMTH) else check  # it nominates for both
        thorough = check in (CheckName.REPEAT, CheckName.RESIDUE)
        case = self.case(schedule, await self.replay(schedule), thorough)
        judgement = await self.ask(case, [first])
        if first is not check and first_of(judgement.findings, kind, check) is None:
            judgement = await self.ask(dataclasses.replace(case, thorough=True), [check])
        return judgement

    async def replay(self, schedule: Schedule, audits: bool = True) -> Trace:
        """One trace on a fresh target; variants, of which no check asks for accounts, go without."""
        self.target_meter.watch(self.factory.module(schedule.settings))
        self.replays += 1
        return await self.stage.play(schedule, audits)

    def reference(self, settings: Mapping[str, Setting]) -> Reference:
        """The reference in the precision of these settings, its rounding bound measured once.

        Raises:
            BadInput: where the factory's network can't be built or asked.
        """
        key = tuple(settings.get(knob.name, knob.default) for knob in self.factory.knobs if not knob.drawn)
        if key not in self._references:
            try:
                network = self.factory.network(settings)
                cells = settings.get("kv_dtype", "same")
                coarse = cells not in ("same", str(next(network.parameters()).dtype).removeprefix("torch."))
                # Cells in another type move logits by no more than arithmetic in that type does.
                rounded = self.factory.network({**settings, "dtype": cells, "weights": "same"}) if coarse else network
                size = max(bound(each, self.factory.vocabulary) for each in {network, rounded})
                reference = Reference(network, max(size, self.factory.control.rounding), coarse)
            except BadInput:
                raise
            except Exception as error:  # a user's own network may raise anything
                raise BadInput("target", "one whose network can be asked", self.factory.name, sentence(error)) from error
            self._references[key] = reference
            self.reference_meter.watch(network)
        return self._references[key]

    async def drive(self, questions: Generator[Ask, Trace, Answer]) -> Answer:
        """Feeds a check, or other questions of that shape, the traces they ask for; gives what they return."""
        anew: Stage | None = None
        try:
            asked = next(questions)
            while True:
                if isinstance(asked, Anew):
                    anew = self._renewed(anew)
                asked = questions.send(await self._answer(asked, anew))
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer
        finally:
            if anew is not None:
                anew.close()

    async def _answer(self, asked: Ask, anew: Stage | None) -> Trace:
        """The trace that a check asks for. Only where it says so has it accounts: most have no use for them."""
        if isinstance(asked, Schedule):
            return await self.replay(asked, audits=False)
        if isinstance(asked, Accounted):
            return await self.replay(asked.schedule)
        assert anew is not None, "Used comes after an Anew"
        self.replays += 1
        return await anew.play(asked.schedule)

    def _renewed(self, old: Stage | None) -> Stage:
        """A stage on which nothing has run, in place of an older one."""
        if old is not None:
            old.close()
        return self.stage.renewed()


def first_of(findings: Iterable[Finding], kind: Kind, check: CheckName) -> Finding | None:
    """The first finding of this kind by this check."""
    return next((found for found in findings if found.kind is kind and found.check is check), None)
