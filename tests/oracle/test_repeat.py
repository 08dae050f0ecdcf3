"""Repeat: a target that is not the same twice, told apart from one that remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from fuzz.stage import InProcess, Renewing
from oracle.case import Accounted, Anew, Ask, Used
from oracle.checks.repeat import repeat
from oracle.finding import Report, Verdict
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import Asked, CheckName, Emitted, Kind, Schedule, Trace
from tests.oracle.handmade import asked, case_of

ONE = asked((1, 2))


def said(shade: float) -> Trace:
    """One token, with logits of a shade."""
    return (Asked(0), Asked(1), Emitted(0, 5, torch.full((16,), shade)))


def report(answer: Callable[[Ask], Trace], first: Trace, thorough: bool = False) -> Report:
    """What the check returns when its questions are answered so."""
    running = repeat(case_of(ONE, first, thorough=thorough))
    try:
        question = next(running)
        while True:
            question = running.send(answer(question))
    except StopIteration as stop:
        found: Report = stop.value
        return found


def remembering(question: Ask) -> Trace:
    """The same where nothing has run; something else where the schedule has just run."""
    return said(2.0 if isinstance(question, Used) else 1.0)


def test_a_replay_with_the_same_bits_asks_nothing_more() -> None:
    questions: list[Ask] = []

    def answer(question: Ask) -> Trace:
        questions.append(question)
        return said(1.0)

    assert report(answer, said(1.0)).verdict is Verdict.PASS
    assert questions == [ONE]


def test_fresh_targets_that_agree_and_a_used_one_that_differs_are_a_leak_from_the_past() -> None:
    (finding,) = report(remembering, said(3.0)).findings
    assert (finding.kind, finding.check) == (Kind.LEAK, CheckName.REPEAT)
    assert (finding.submission, finding.position) == (0, 0)
    assert [sentence.split(":")[0] for sentence in finding.evidence] == ["fresh", "used"]


def test_a_thorough_case_needs_no_difference_to_begin_with() -> None:
    assert report(remembering, said(1.0), thorough=True).findings
    assert report(lambda _: said(1.0), said(1.0), thorough=True).verdict is Verdict.PASS


def test_two_fresh_targets_that_differ_are_unstable_and_nothing_is_found() -> None:
    shades: Iterator[int] = iter(range(10))
    told = report(lambda _: said(float(next(shades))), said(-1.0))
    assert told.findings == []
    assert told.verdict is Verdict.UNKNOWN
    assert told.unstable == ["two fresh targets differ at event 2: the logits of request #0 differ"]


def test_a_difference_that_a_second_run_does_not_explain_is_unstable_too() -> None:
    told = report(lambda question: said(1.0 if isinstance(question, Anew | Used) else 2.0), said(3.0))
    assert told.findings == []
    assert len(told.unstable) == 1


def test_a_network_that_keeps_a_cell_is_convicted_and_its_honest_twin_passes(tiny: Model) -> None:
    fault = FAULTS["kept-between-runs"]
    schedule = fault.smallest[Kind.LEAK]

    def found(parts: object, stage: str) -> object:
        factory = DecoderFactory(tiny, parts)  # type: ignore[arg-type]
        judge = Judge(factory, InProcess(factory, lambda: DecoderFactory(tiny, factory.parts)))
        if stage == "renewing":
            judge.stage = Renewing(judge.stage)
        return run_trio(judge.same, schedule, Kind.LEAK, CheckName.REPEAT)

    assert found(fault.plant(), "plain") is not None
    assert found(fault.plant(), "renewing") is not None
    assert found(None, "plain") is None


def test_a_stage_that_is_renewed_for_each_replay_gives_a_remembering_target_no_past(tiny: Model) -> None:
    factory = DecoderFactory(tiny, FAULTS["kept-between-runs"].plant())
    rebuilt: list[DecoderFactory] = []

    def rebuild() -> DecoderFactory:
        rebuilt.append(DecoderFactory(tiny, factory.parts))
        return rebuilt[-1]

    judge = Judge(factory, Renewing(InProcess(factory, rebuild)))

    async def departs() -> bool:
        schedule = asked((1,), new=2)
        first = await judge.replay(schedule)
        return bool((await judge.ask(judge.case(schedule, first), [CheckName.REPEAT])).findings)

    assert not run_trio(departs)
    assert len(rebuilt) == 2


def test_accounts_are_asked_for_by_name(slots: DecoderFactory) -> None:
    judge = Judge(slots)

    def questions(schedule: Schedule) -> object:
        plain = yield schedule
        full = yield Accounted(schedule)
        return len(full) > len(plain)

    assert run_trio(judge.drive, questions(ONE))
