"""Histories: schedules one after another on one target are one schedule, and a failure keeps as much of it as it needs."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from fuzz.conductor import replay, run_trio
from fuzz.history import History, in_a_row, joined, least_history, stretches
from fuzz.judge import Judge
from fuzz.search import Limits, Search
from oracle.finding import Finding
from targets.protocol import (
    Cancel,
    CheckName,
    Emitted,
    Event,
    Finished,
    Kind,
    Request,
    Schedule,
    Step,
    Submit,
    Wait,
    submissions,
)
from tests.fuzz.scripted import ROOMS, Full, Honest, Scripted
from tests.fuzz.worn import Tidy, Worn, WornFactory


def asked(*prompt: int, new: int = 2, **more: int) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, **more))


PAIR = Schedule(ops=(asked(1), Step(1, (0,)), asked(2, new=3, sample_of=0), Wait(0, 1)), settings={"size": 2})
CANCELLED = Schedule(ops=(asked(4), Cancel(0)))
SESSION = Schedule(ops=(asked(5), Wait(0, 3), asked(6, continues=0), Step(2)))


def test_joined_schedules_are_played_one_after_another_and_nobody_is_left_in_between() -> None:
    assert joined([PAIR, CANCELLED, SESSION]) == Schedule(
        ops=(
            *PAIR.ops,
            Wait(0, 3),
            Wait(1, 4),
            asked(4),
            Cancel(2),
            asked(5),
            Wait(3, 3),
            asked(6, continues=3),
            Step(2),
        ),
        settings={"size": 2},
    )


def test_whoever_comes_after_a_stretch_finds_everybody_gone() -> None:
    left: list[set[int]] = []

    class Watched(Honest):
        def submit(self, submission: int, request: Request) -> list[Event]:
            if submission == 3:
                left.append(set(self.live))
            return super().submit(submission, request)

    factory = Scripted(Watched)
    trace = replay(factory, joined([PAIR, CANCELLED, SESSION]))
    assert left == [set()]
    assert len(factory.opened) == 1
    assert sum(isinstance(event, Finished) for event in trace) == 5


def test_a_joined_schedule_gives_the_tokens_of_its_parts() -> None:
    def tokens(schedule: Schedule) -> list[int]:
        return [event.token for event in replay(Scripted(Honest), schedule) if isinstance(event, Emitted)]

    assert tokens(joined([PAIR, CANCELLED, SESSION])) == [*tokens(PAIR), *tokens(CANCELLED), *tokens(SESSION)]


def test_one_in_a_row_is_the_schedule_itself_and_the_last_ones_may_be_fewer() -> None:
    assert list(in_a_row(iter([PAIR, SESSION]), 1)) == [PAIR, SESSION]
    assert list(in_a_row(iter([PAIR, CANCELLED, SESSION]), 2)) == [joined([PAIR, CANCELLED]), SESSION]


def test_stretches_end_where_everybody_who_came_has_been_waited_for_or_has_given_up() -> None:
    assert stretches(PAIR) == (range(4),)
    assert stretches(SESSION) == (range(2), range(2, 4))
    assert stretches(joined([PAIR, CANCELLED, SESSION])) == (range(6), range(6, 8), range(8, 10), range(10, 12))


FOUND = Finding(kind=Kind.LEAK, check=CheckName.SWAP, what="", submission=4)
EIGHT = joined([Schedule(ops=(Step(), asked(10 + each))) for each in range(8)])


def least(*needed: int, victim: int | None = 14) -> tuple[History, list[tuple[int, ...]]]:
    """What is left of eight stretches where these prompts fail together; and what was tried on the way."""
    tried: list[tuple[int, ...]] = []

    async def evaluate(schedule: Schedule) -> Finding | None:
        prompts = tuple(request.prompt[0] for request in submissions(schedule))
        tried.append(prompts)
        if not {*needed} <= {*prompts}:
            return None
        return msgspec.structs.replace(FOUND, submission=None if victim is None else prompts.index(victim))

    first = msgspec.structs.replace(FOUND, submission=None if victim is None else victim - 10)
    return run_trio(least_history, EIGHT, first, evaluate), tried


def test_a_failure_is_first_tried_on_a_fresh_target_and_then_needs_no_history() -> None:
    history, tried = least(14)
    alone = Schedule(ops=(Step(), asked(14), Wait(0, 3)))
    assert history == History(alone, msgspec.structs.replace(FOUND, submission=0), 0, 7, 1)
    assert tried == [(14,)]
    assert history.evidence == ()


def test_of_a_history_only_the_stretches_stay_without_which_the_failure_is_gone() -> None:
    history, tried = least(11, 13, 14)
    assert [request.prompt for request in submissions(history.schedule)] == [(11,), (13,), (14,)]
    three = joined([Schedule(ops=(Step(), asked(each))) for each in (11, 13, 14)])
    assert history.schedule.ops == (*three.ops, Wait(2, 3))
    assert tried[:2] == [(14,), (10, 11, 12, 13, 14)]
    assert (history.needed, history.had, history.evaluations) == (2, 7, len(tried))
    assert history.evidence == ("history: it takes 2 of the 7 other stretches, after which nobody was left, and no fewer",)


def test_a_failure_of_nobody_in_particular_keeps_what_it_takes_as_well() -> None:
    history, _ = least(12, 17, victim=None)
    assert [request.prompt for request in submissions(history.schedule)] == [(12,), (17,)]


def test_a_failure_that_takes_everything_keeps_everything() -> None:
    history, _ = least(*range(10, 18), victim=17)
    assert history.schedule == EIGHT
    assert history.needed == 7


def test_without_a_moment_at_which_nobody_is_left_there_is_no_history() -> None:
    async def evaluate(schedule: Schedule) -> Finding | None:
        raise AssertionError("nothing is to be tried")

    assert run_trio(least_history, PAIR, FOUND, evaluate) == History(PAIR, FOUND)


@pytest.mark.slow
def test_a_fault_that_wears_a_target_out_is_missed_on_fresh_ones_and_found_on_one_that_is_used_again() -> None:
    fresh = Search(Scripted(Full), 1, Limits(schedules=12))
    run_trio(fresh.run)
    assert fresh.tally.failures == []
    used = Search(Scripted(Full), 1, Limits(schedules=1), in_a_row=12)
    run_trio(used.run)
    (failure,) = used.tally.failures
    assert (failure.finding.kind, failure.finding.check) == (Kind.CRASHED, CheckName.SURVIVAL)
    assert len(submissions(failure.schedule)) == ROOMS + 1
    assert failure.minimal
    assert failure.finding.evidence[-1].startswith("history: it takes ")


def test_a_run_plays_as_many_in_a_row_as_it_is_told_and_else_as_many_as_the_target_says() -> None:
    factory = Scripted(Honest)
    parts = list(itertools.islice(Search(factory, 1, Limits()).generate(), 3))
    assert next(Search(factory, 1, Limits(), in_a_row=3).generate()) == joined(parts)
    factory.control = msgspec.structs.replace(factory.control, in_a_row=2)
    assert next(Search(factory, 1, Limits()).generate()) == joined(parts[:2])


USED = joined([Schedule(ops=(asked(1 + each), Step(), asked(5 + each), asked(9 + each))) for each in range(4)])


@pytest.mark.slow
def test_a_leak_from_long_ago_is_found_with_its_history_and_fails_again() -> None:
    factory = WornFactory(Worn, places=7)
    search = Search(factory, 3, Limits())
    run_trio(search.one, USED)
    failure = search.tally.failures[0]
    assert failure.finding.kind is Kind.LEAK
    assert (failure.finding.submission, failure.finding.sources) == (7, (0,))
    assert (len(failure.schedule.ops), failure.minimal) == (8, True)
    assert (
        "history: it takes 2 of the 3 other stretches, after which nobody was left, and no fewer" in failure.finding.evidence
    )
    assert run_trio(Judge(factory).same, failure.schedule, Kind.LEAK, failure.finding.check) is not None


@pytest.mark.slow
def test_its_honest_twin_passes() -> None:
    search = Search(WornFactory(Tidy, places=7), 3, Limits())
    run_trio(search.one, USED)
    assert search.tally.failures == []
    assert len(submissions(USED)) > 7
