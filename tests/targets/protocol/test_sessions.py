"""Sessions: what a request that goes on from another was handed in with, read off the trace."""

from __future__ import annotations

import pytest

from targets.protocol import Asked, BadInput, Emitted, Event, Request, Schedule, Step, Submit, Trace, in_full, submissions
from targets.protocol.schedule import check_references, format_schedule


def ask(*prompt: int, continues: int | None = None) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=4, continues=continues))


def prompts(schedule: Schedule, trace: Trace) -> list[tuple[int, ...]]:
    whole = submissions(in_full(schedule, trace))
    assert all(request.continues is None for request in whole)
    return [request.prompt for request in whole]


def told(*events: Event | int) -> Trace:
    """Numbers are tokens of #0."""
    return tuple(Emitted(0, event, None) if isinstance(event, int) else event for event in events)


CHAT = Schedule(ops=(ask(1, 2), Step(2), ask(3, continues=0), ask(4, continues=1)))


def test_prompt_and_answer_so_far_come_before_the_prompt_of_who_goes_on() -> None:
    trace = told(Asked(0), Asked(1), 7, 8, Asked(2), 9, Asked(3), Emitted(1, 5, None))
    assert prompts(CHAT, trace) == [(1, 2), (1, 2, 7, 8, 3), (1, 2, 7, 8, 3, 4)]


def test_where_a_trace_ends_early_the_rest_goes_on_from_what_is_known() -> None:
    assert prompts(CHAT, told(Asked(0), Asked(1), 7)) == [(1, 2), (1, 2, 7, 3), (1, 2, 7, 3, 4)]
    assert prompts(CHAT, ()) == [(1, 2), (1, 2, 3), (1, 2, 3, 4)]


def test_a_schedule_in_which_nobody_goes_on_is_said_in_full_already() -> None:
    schedule = Schedule(ops=(ask(1), ask(2)))
    assert in_full(schedule, told(Asked(0), 7)) is schedule


def test_only_from_an_earlier_request_one_can_go_on() -> None:
    check_references(CHAT)
    with pytest.raises(BadInput, match="submission must be one of the 1 submissions before it, got 1"):
        check_references(Schedule(ops=(ask(1), ask(2, continues=1))))


def test_a_printed_schedule_says_who_goes_on_from_whom() -> None:
    assert "goes on from #1" in format_schedule(CHAT).splitlines()[3]
