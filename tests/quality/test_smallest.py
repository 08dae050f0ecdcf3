from __future__ import annotations

import pytest

from fuzz.conductor import replay, run_trio
from fuzz.edits import reductions
from fuzz.fault_bench.attempts import stage_of
from fuzz.judge import Judge
from oracle.finding import Verdict
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import CheckName, Kind, Schedule
from tests.quality.planting import NAMES, SMALLEST, judged, plant, smallest

EVERY = pytest.mark.parametrize(("name", "kind"), SMALLEST, ids=lambda part: str(part))


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_says_what_it_is_and_declares_at_most_two_kinds(name: str) -> None:
    fault = FAULTS[name]
    assert fault.name == name
    assert all((fault.group, fault.modelled_on, fault.doc, fault.mixins, fault.models))
    assert 1 <= len(fault.kinds) <= 2
    assert len(set(fault.checks)) == len(fault.checks) > 0


@pytest.mark.slow
@EVERY
def test_the_smallest_schedule_shows_its_kind_by_a_rightful_check_and_nothing_else(
    tiny: Model, name: str, kind: Kind
) -> None:
    fault = FAULTS[name]
    factory, probe = plant(tiny, name)
    schedule = smallest(name, kind)
    replay(factory, schedule)
    replay(factory, schedule)  # what a network keeps shows the second time
    assert probe.reached
    assert probe.changed
    judgement = judged(factory, schedule)
    found = {(finding.kind, finding.check) for finding in judgement.findings}
    assert any(of is kind and by in fault.checks for of, by in found), found
    assert all(of in fault.kinds and by in fault.checks for of, by in found), found
    assert not judgement.crashed_checks


@EVERY
def test_the_honest_twin_of_a_fault_goes_the_same_way_and_passes(tiny: Model, name: str, kind: Kind) -> None:
    factory, probe = plant(tiny, name, honest=True)
    judgement = judged(factory, smallest(name, kind))
    assert judgement.verdict is Verdict.PASS, judgement.findings
    assert probe.reached
    assert not probe.changed


@pytest.mark.long
@EVERY
def test_nothing_can_be_taken_away_from_a_smallest_schedule(tiny: Model, name: str, kind: Kind) -> None:
    factory, _ = plant(tiny, name)
    schedule = smallest(name, kind)

    async def shows(judge: Judge, candidate: Schedule, check: CheckName) -> bool:
        return await judge.same(candidate, kind, check) is not None

    async def smaller() -> list[Schedule]:
        judge = Judge(factory, stage_of(factory))
        (check, *_) = [check for check in FAULTS[name].checks if await shows(judge, schedule, check)]
        less = {candidate.key(): candidate for candidate in reductions(schedule, FAULTS[name].settings)}
        less.pop(schedule.key(), None)
        return [candidate for candidate in less.values() if await shows(judge, candidate, check)]

    assert run_trio(smaller) == []
