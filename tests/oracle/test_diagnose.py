"""Diagnose: the experiments that tell where to look, and what each says of bugs whose cause is known."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from fuzz.stage import InProcess
from oracle.diagnose import diagnose, serialised
from oracle.finding import Finding
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import Cancel, CheckName, Kind, Schedule, Step, Submit, Wait, submissions
from tests.oracle.handmade import asked


def outcomes(tiny: Model, name: str, kind: Kind, schedule: Schedule | None = None) -> dict[str, str]:
    """The evidence on a planted fault, by experiment."""
    fault = FAULTS[name]
    factory = DecoderFactory(tiny, fault.plant())
    judge = Judge(factory, InProcess(factory, lambda: DecoderFactory(tiny, factory.parts)))
    told = schedule or fault.smallest[kind]

    async def ask() -> tuple[str, ...]:
        judgement = await judge.judge(told, thorough=True)
        finding: Finding = next(found for found in judgement.findings if found.kind is kind)
        return await judge.drive(diagnose(judgement.case, finding))

    sentences = run_trio(ask)
    return {sentence.partition(": ")[0]: sentence.partition(": ")[2] for sentence in sentences}


@pytest.mark.slow
def test_shared_storage_goes_wrong_one_request_a_step_as_well(tiny: Model) -> None:
    told = outcomes(tiny, "global-cache-locked", Kind.LEAK)
    assert told["serialised"].startswith("with one request a step it goes wrong in the same way")
    assert told["alone"] == "with nobody else nothing is wrong"
    assert told["fresh"].endswith("the bits are the same")
    assert told["used"].endswith("the bits are the same")


@pytest.mark.slow
def test_what_only_a_common_forward_does_is_gone_one_request_a_step(tiny: Model) -> None:
    told = outcomes(tiny, "position-of-longest", Kind.INTERFERENCE)
    assert told["serialised"].startswith("with one request a step it is gone")


@pytest.mark.slow
def test_a_slot_that_is_not_reset_answers_the_same_request_otherwise_the_second_time(tiny: Model) -> None:
    one_slot = asked((1,), (2,))
    told = outcomes(tiny, "stale-length", Kind.LEAK, Schedule(ops=one_slot.ops, settings={"slots": 1}))
    assert told["again"].endswith("answered otherwise")


@pytest.mark.slow
def test_what_is_wrong_alone_is_found_wrong_alone_and_with_the_same_bits_again(tiny: Model) -> None:
    told = outcomes(tiny, "layer-off-by-one", Kind.WRONG_ALONE, asked((1,), (2,)))
    assert told["alone"] == "with nobody else it goes wrong in the same way"
    assert told["again"].endswith("with the same bits")


@pytest.mark.slow
def test_an_account_that_does_not_add_up_is_looked_for_in_accounts(tiny: Model) -> None:
    told = outcomes(tiny, "global-cache-appended", Kind.OWNERSHIP)
    assert told["serialised"].startswith("with one request a step it goes wrong in the same way")


def test_a_serialised_schedule_names_one_request_in_every_step_and_lasts_long_enough() -> None:
    timed = msgspec.structs.replace(submissions(asked((1,), new=3))[0], deadline_s=2)
    ops = (Submit(timed), *asked((2,), new=3).ops, Step(2), Wait(1, 2), Cancel(0))
    schedule = Schedule(ops=ops, settings={"slots": 1})
    told = serialised(schedule)
    steps = [op for op in told.ops if isinstance(op, Step)]
    assert all(step.count == 1 and step.rows is not None and len(step.rows) == 1 for step in steps)
    assert [step.rows for step in steps[:4]] == [(0,), (1,), (0,), (1,)]
    assert sum(step.rows == (0,) for step in steps) >= 2 + 2 + 6
    assert [type(op) for op in told.ops if not isinstance(op, Step)] == [Submit, Submit, Cancel]
    assert submissions(told) == (msgspec.structs.replace(timed, deadline_s=None), submissions(schedule)[1])
    assert told.settings == schedule.settings


def test_rows_that_were_named_stay_the_only_ones() -> None:
    schedule = Schedule(ops=(*asked((1,), (2,)).ops, Step(2, (1,))))
    steps = [op.rows for op in serialised(schedule).ops if isinstance(op, Step)]
    assert steps[:2] == [(1,), (1,)]


def test_a_check_that_is_asked_for_a_reason_is_not_asked_again(tiny: Model) -> None:
    factory = DecoderFactory(tiny)
    judge = Judge(factory)

    async def ask() -> tuple[str, ...]:
        judgement = await judge.judge(asked((1,)))
        finding = Finding(kind=Kind.LEAK, check=CheckName.REPEAT, what="it remembers")
        return await judge.drive(diagnose(judgement.case, finding))

    assert run_trio(ask) == ()
