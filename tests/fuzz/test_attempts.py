"""Attempts: what a trial says of kinds, before shrinking and after, and of sources."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.fault_bench.attempts import Task, Trial, attempt, trial_of
from fuzz.fault_bench.tables import format_trials
from fuzz.search import Failure, Tally
from oracle.finding import Finding
from targets.protocol import CheckName, Kind, Schedule
from tests.oracle.handmade import asked

TASK = Task(fault="late-token", seed=1, schedules=40)
LEAK = Finding(kind=Kind.LEAK, check=CheckName.SWAP, what="", submission=1, sources=(0,))
WRONG = Finding(kind=Kind.INTERFERENCE, check=CheckName.ISOLATION, what="", submission=1)
TWO, THREE = asked((1,), (2,)), asked((1,), (2,), (3,))


def failure(first: Finding, last: Finding, schedule: Schedule = TWO) -> Failure:
    return Failure(
        signature=f"{last.kind} {last.check}: plain",
        site="",
        schedule=schedule,
        finding=last,
        evaluations=9,
        minimal=True,
        trace_digest="",
        found_after=3,
        found_after_s=0.5,
        first=first,
    )


def trial(*failures: Failure, unstable: tuple[str, ...] = ()) -> Trial:
    return trial_of(TASK, Tally(failures=list(failures), unstable=list(unstable)))


@pytest.mark.parametrize(
    ("failures", "unstable", "right_first", "right"),
    [
        pytest.param((failure(LEAK, LEAK),), (), True, True, id="right both times"),
        pytest.param((failure(WRONG, LEAK),), (), False, True, id="wrong before it was shrunk"),
        pytest.param((failure(LEAK, WRONG), failure(LEAK, LEAK)), (), True, False, id="wrong afterwards"),
        pytest.param((failure(WRONG, WRONG), failure(LEAK, LEAK)), (), False, False, id="another one is wrong"),
        pytest.param((failure(LEAK, LEAK),), ("gone",), True, False, id="a minimal schedule that passes"),
    ],
)
def test_a_kind_is_right_only_if_every_failure_of_the_run_has_one_that_the_fault_declares(
    failures: tuple[Failure, ...], unstable: tuple[str, ...], right_first: bool, right: bool
) -> None:
    made = trial(*failures, unstable=unstable)
    assert (made.right_first, made.right) == (right_first, right)
    assert made.kind == Kind.LEAK


@pytest.mark.parametrize(
    ("sources", "schedule", "right"),
    [
        pytest.param((0,), TWO, True, id="the other one"),
        pytest.param((), TWO, False, id="nobody is named"),
        pytest.param((0,), THREE, None, id="of two others, the truth is not known"),
    ],
)
def test_with_two_requests_the_source_is_the_other_one(
    sources: tuple[int, ...], schedule: Schedule, right: bool | None
) -> None:
    assert trial(failure(LEAK, msgspec.structs.replace(LEAK, sources=sources), schedule)).source_right is right


def test_the_line_of_a_fault_counts_kinds_and_sources() -> None:
    good, bad = trial(failure(LEAK, LEAK)), trial(failure(WRONG, LEAK, THREE))
    line = format_trials([good, bad])
    assert "found 2 of 2" in line
    assert "kind right before shrinking 1, after 2  source right 1 of 1" in line


@pytest.mark.slow
def test_a_real_trial_is_right_before_and_after_and_names_its_source() -> None:
    made = attempt(TASK)
    assert (made.kind_first, made.kind, made.right_first, made.right, made.source_right) == (
        Kind.LEAK,
        Kind.LEAK,
        True,
        True,
        True,
    )


@pytest.mark.slow
def test_a_trial_says_when_a_fault_was_reached_and_when_it_made_a_difference() -> None:
    made = attempt(TASK)
    assert made.reached is not None
    assert made.triggered is not None
    assert made.found is not None
    assert 1 <= made.reached <= made.triggered <= made.found == made.judged
    assert made.found_s is not None
    assert 0 < made.found_s <= made.judged_s


@pytest.mark.slow
def test_a_trial_that_finds_nothing_says_how_much_it_tried() -> None:
    made = attempt(Task(fault="sampler-restarts", way="all-at-once", schedules=1))
    assert (made.judged, made.found, made.kind) == (1, None, "")


@pytest.mark.slow
def test_another_way_is_measured_by_detection_alone() -> None:
    made = attempt(Task(fault="stale-length", way="uniform", schedules=40))
    assert made.found is not None
    assert (made.evaluations, made.minimal) == (0, False)
