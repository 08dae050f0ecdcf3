"""Residue: what lies in cells that hold nothing of a live request changes no bit."""

from __future__ import annotations

import msgspec
import pytest
import torch

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.checks.residue import residue
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import CheckName, Control, Emitted, Finished, Kind, Reason, Schedule, Trace
from tests.oracle.handmade import LIFE, asked, case_of, report_of
from tests.quality.planting import plant, smallest

POISONED = Control(logits=True, tags=True, poison=True)
SCHEDULE = msgspec.structs.replace(asked((1, 2), (3,)), settings={"sanitize": True, "slots": 2})


def answered(moved: float = 0.0, reason: Reason = Reason.LENGTH) -> Trace:
    return (
        Emitted(0, 5, torch.tensor([0.0, 1.0])),
        Emitted(1, 6, torch.tensor([moved, 1.0])),
        Finished(0, reason, (5,)),
        Finished(1, Reason.LENGTH, (6,)),
    )


def poisons(control: Control = POISONED, schedule: Schedule = SCHEDULE, thorough: bool = True) -> list[object]:
    """The poisons that are asked for, one after another."""
    variants: list[Schedule] = []

    def play(variant: Schedule) -> Trace:
        variants.append(variant)
        return answered()

    report_of(residue, case_of(schedule, answered(), control=control, thorough=thorough), play)
    assert all(variant.ops == schedule.ops for variant in variants)
    assert all(variant.settings["sanitize"] is False for variant in variants)
    return [variant.settings["poison"] for variant in variants]


def test_both_finite_poisons_are_asked_where_the_case_is_thorough_and_nan_only_by_promise() -> None:
    assert poisons() == ["low", "high"]
    promised = msgspec.structs.replace(POISONED, poison_nan=True)
    assert poisons(promised) == ["low", "high", "nan"]


def test_a_poison_that_the_schedule_has_already_is_not_asked_again() -> None:
    settings = {**SCHEDULE.settings, "poison": "low"}
    assert poisons(schedule=msgspec.structs.replace(SCHEDULE, settings=settings)) == ["high"]


def test_most_schedules_get_one_poison_and_the_same_one_each_time() -> None:
    asked_of = []
    for slots in range(1, 65):
        schedule = msgspec.structs.replace(SCHEDULE, settings={"sanitize": True, "slots": slots})
        chosen = poisons(schedule=schedule, thorough=False)
        assert chosen == poisons(schedule=schedule, thorough=False)
        assert len(chosen) <= 1
        asked_of += chosen
    assert 36 <= len(asked_of) <= 60
    assert set(asked_of) == {"low", "high"}


@pytest.mark.parametrize(
    ("control", "settings"),
    [(POISONED, {}), (POISONED, {"sanitize": False}), (Control(logits=True, tags=True), {"sanitize": True})],
)
def test_nothing_is_asked_without_sanitize_or_of_a_target_without_poison(
    control: Control, settings: dict[str, bool]
) -> None:
    assert poisons(control, msgspec.structs.replace(SCHEDULE, settings=settings)) == []


@pytest.mark.parametrize(
    ("after", "kinds", "counts"),
    [
        pytest.param(answered(), [], (2, 0), id="the same bits: nothing is found"),
        pytest.param(answered(moved=1e-7), [Kind.LEAK], (1, 0), id="other bits: a leak"),
        pytest.param(answered(reason=Reason.STOP), [], (0, 2), id="another skeleton: undecided"),
        pytest.param(answered(moved=1e-7, reason=Reason.STOP), [Kind.LEAK], (1, 0), id="bits before the skeleton: a leak"),
        pytest.param(answered()[:-1], [], (0, 2), id="a trace that stops short: undecided"),
        pytest.param((), [], (0, 2), id="no trace at all: undecided"),
    ],
)
def test_the_bits_decide(after: Trace, kinds: list[Kind], counts: tuple[int, int]) -> None:
    case = case_of(SCHEDULE, answered(), control=POISONED, thorough=True)
    report = report_of(residue, case, lambda variant: after if "poison" in variant.settings else answered())
    assert [finding.kind for finding in report.findings] == kinds
    assert (report.poisoned, report.poisoned_undecided) == counts
    for finding in report.findings:
        assert (finding.check, finding.submission, finding.position, finding.actual) == (CheckName.RESIDUE, 1, 0, 6)
        assert "filled with the low poison" in finding.evidence[0]


def test_a_target_whose_bits_move_by_themselves_is_undecided() -> None:
    case = case_of(SCHEDULE, answered(), control=POISONED, thorough=True)
    report = report_of(residue, case, lambda _: answered(moved=1e-7))
    assert (report.findings, report.poisoned, report.poisoned_undecided) == ([], 0, 2)


FOUND = [name for name, fault in FAULTS.items() if CheckName.RESIDUE in fault.checks]
ANYWHERE = [name for name in FOUND if FAULTS[name].targets[0] == "slots" and not FAULTS[name].settings]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FOUND} - {*ANYWHERE}))
def test_a_planted_residue_that_needs_settings_is_seen_on_a_smallest_schedule(tiny: Model, name: str) -> None:
    schedules = [smallest(name, kind) for kind in FAULTS[name].kinds]
    for honest in (False, True):
        factory, _ = plant(tiny, name, honest)
        found = [
            run_trio(
                Judge(factory).same,
                msgspec.structs.replace(schedule, settings={**schedule.settings, "sanitize": True}),
                Kind.LEAK,
                CheckName.RESIDUE,
            )
            for schedule in schedules
        ]
        assert any(found) != honest


@pytest.mark.slow
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_planted_fault_that_reads_what_it_should_not_is_seen_and_its_honest_twin_is_not(tiny: Model, name: str) -> None:
    for honest in (False, True):
        factory, _ = plant(tiny, name, honest)
        finding = run_trio(Judge(factory).same, LIFE, Kind.LEAK, CheckName.RESIDUE)
        assert (finding is None) == honest


def test_an_honest_decoder_passes(slots: DecoderFactory) -> None:
    judge = Judge(slots)

    async def thorough() -> tuple[int, int]:
        judgement = await judge.judge(LIFE, [CheckName.RESIDUE], thorough=True)
        assert judgement.findings == []
        return judgement.report.poisoned, judgement.report.poisoned_undecided

    assert run_trio(thorough) == (2, 0)
    assert judge.replays == 3
