"""From a long schedule to a short one in which the same is amiss."""

from __future__ import annotations

import pytest

from fuzz.conductor import run_trio
from fuzz.edits import keep_requests
from fuzz.judge import Judge
from stress.recording.narrowing import EVALUATIONS_MAX, FEW, Narrower, kept
from targets.protocol import Cancel, CheckName, Op, Request, Schedule, Step, Submit, Wait, submissions
from targets.registry import TargetSpec, build


def crowd(count: int) -> Schedule:
    """Requests of unequal lengths, a step apart, some of them cancelled."""
    ops: list[Op] = []
    for number in range(count):
        prompt = tuple((7 * number + place) % 250 for place in range(1 + number % 9))
        ops += [Submit(Request(prompt=prompt, max_new_tokens=1 + number % 5)), Step(1 + number % 2)]
        if number % 6 == 5:
            ops.append(Cancel(number - 1))
    return Schedule(ops=tuple(ops))


def test_keeping_some_is_what_dropping_the_others_one_by_one_is() -> None:
    schedule = crowd(12)
    schedule = Schedule(ops=(*schedule.ops, Wait(3, 1), Submit(Request(prompt=(1,), max_new_tokens=1, sample_of=3))))
    for these in ({0, 3, 7, 12}, {12}, set(range(13)), {4, 5, 12}):
        assert kept(schedule, these) == keep_requests(schedule, these)


@pytest.mark.slow
def test_a_crowd_is_narrowed_to_the_few_that_matter() -> None:
    judge = Judge(build(TargetSpec(faults=("stale-length",))))
    schedule = crowd(40)

    async def narrowed() -> tuple[Schedule, int, dict[CheckName, int]]:
        narrower = Narrower(judge)
        nominated = await narrower.nominations(schedule)
        small = await narrower.narrow(schedule, CheckName.ISOLATION, nominated[CheckName.ISOLATION])
        return small, narrower.evaluations, await narrower.nominations(small)

    small, evaluations, nominated = run_trio(narrowed)
    assert len(submissions(small)) <= FEW
    assert evaluations <= EVALUATIONS_MAX
    assert CheckName.ISOLATION in nominated


@pytest.mark.slow
def test_an_honest_target_is_nominated_for_nothing() -> None:
    assert run_trio(Narrower(Judge(build(TargetSpec()))).nominations, crowd(40)) == {}
