"""Life-cycle events: each story gives its grams by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz.conductor import replay
from fuzz.lifecycle import gram, grams, happenings
from targets.decoder import DecoderFactory
from targets.models import Model
from targets.protocol import (
    Admitted,
    Asked,
    Cancel,
    Emitted,
    Event,
    Finished,
    Freed,
    Op,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Request,
    Schedule,
    Setting,
    Step,
    Stepped,
    Submit,
)


def ask(*prompt: int, new: int = 3, **extras: object) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, **extras))  # type: ignore[arg-type]


def told(ops: Sequence[Op], *trace: Event) -> str:
    """The whole story in words."""
    return gram(happenings(Schedule(ops=tuple(ops)), trace))


def test_a_life_is_told_from_its_submission_to_its_end() -> None:
    assert told(
        [ask(1)],
        Asked(0),
        Asked(1),
        Stepped(0),
        Admitted(0, 0),
        Emitted(0, 5),
        Stepped(1),
        Emitted(0, 6),
        Finished(0, Reason.LENGTH, (5, 6)),
        Freed(0, 0),
    ) == ("submit a, admitted a, first a, tokens a, length a, freed a")


def test_tokens_in_a_row_are_one_event_in_however_many_steps_and_first_ones_stay_apart() -> None:
    first = [Emitted(0, 1), Emitted(1, 1)]
    more = [Stepped(1), Emitted(0, 2), Emitted(1, 2), Stepped(2), Emitted(1, 3), Emitted(2, 1), Emitted(0, 3)]
    assert happenings(Schedule(ops=()), (*first, *more)) == [
        ("first", (0,)),
        ("first", (1,)),
        ("tokens", (0, 1)),
        ("first", (2,)),
        ("tokens", (0,)),
    ]


def test_steps_accounts_and_ops_that_change_nothing_are_no_events() -> None:
    assert happenings(Schedule(ops=(Step(), Cancel(0))), (Asked(0), Stepped(0), Asked(1), Asked(2))) == []


def test_a_request_is_resumed_if_it_was_preempted_before() -> None:
    story = (Admitted(0, 0), Prefilled(0, 4), Preempted(0, 0), Admitted(1, 0), Admitted(0, 1))
    assert told([], *story) == "admitted a, chunk a, preempted a, admitted b, resumed a"


@pytest.mark.parametrize("reason", Reason)
def test_every_way_to_end_is_an_event_of_its_own(reason: Reason) -> None:
    assert told([], Finished(0, reason, ())) == f"{reason} a"


def test_a_refusal_and_an_answer_at_once_follow_their_submissions() -> None:
    ops = [ask(), ask(1, new=0)]
    story = (Asked(0), Refused(0, "empty prompt"), Asked(1), Finished(1, Reason.LENGTH, ()))
    assert told(ops, *story) == "submit a, refused a, submit b, length b"


def test_who_is_who_is_part_of_a_gram_and_who_they_are_is_not() -> None:
    alone, beside = [("freed", (3,)), ("admitted", (7,))], [("freed", (7,)), ("admitted", (7,))]
    assert gram(alone) == "freed a, admitted b"
    assert gram(beside) == "freed a, admitted a"
    assert gram([("freed", (5,)), ("admitted", (1,))]) == gram(alone)


def test_tokens_say_who_of_those_named_had_any_wherever_they_stand() -> None:
    assert gram([("tokens", (1, 4)), ("stop", (4,)), ("freed", (4,))]) == "tokens a, stop a, freed a"
    assert gram([("preempted", (4,)), ("tokens", (1, 2)), ("resumed", (4,))]) == "preempted a, tokens -, resumed a"
    assert gram([("tokens", (1, 2)), ("cancelled", (2,)), ("first", (1,))]) == "tokens ab, cancelled a, first b"


def test_a_gram_is_as_many_events_in_a_row() -> None:
    events = [("submit", (0,)), ("submit", (1,)), ("admitted", (0,)), ("admitted", (1,))]
    assert grams(events, 2) == {"submit a, submit b", "submit a, admitted b", "admitted a, admitted b"}
    assert grams(events, 3) == {"submit a, submit b, admitted a", "submit a, admitted b, admitted a"}
    assert grams(events[:1], 2) == set()


STORIES: dict[str, tuple[str, list[Op], dict[str, Setting]]] = {
    "two rows": (
        "submit a, submit b, admitted a, admitted b, first a, first b, length b, freed b, tokens a, length a, freed a",
        [ask(1), ask(2, new=1)],
        {},
    ),
    "a queue": (
        "submit a, submit b, admitted a, first a, tokens a, length a, freed a, admitted b, first b, length b, freed b",
        [ask(1), ask(2, new=1)],
        {"slots": 1},
    ),
    "a cancel in flight": (
        "submit a, admitted a, cancelled a, freed a",
        [ask(1), Step(), Cancel(0), Step()],
        {"pipelined": True},
    ),
    "a deadline in the queue": (
        "submit a, submit b, admitted a, first a, deadline b, tokens a, length a, freed a",
        [ask(1), ask(2, deadline_s=1)],
        {"slots": 1},
    ),
    "chunks": (
        "submit a, admitted a, chunk a, first a, length a, freed a",
        [ask(1, 2, 3, 4, 5, new=1)],
        {"step_tokens_max": 4},
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_the_decoder_does_is_told_as_it_is(tiny: Model, name: str) -> None:
    expected, ops, settings = STORIES[name]
    schedule = Schedule(ops=tuple(ops), settings=settings)
    assert gram(happenings(schedule, replay(DecoderFactory(tiny), schedule))) == expected


def test_a_pool_too_small_for_two_preempts_the_younger_one(tiny: Model) -> None:
    settings: dict[str, Setting] = {"pool_tokens": 8, "page_size": 1, "prefix_cache": False}
    schedule = Schedule(ops=(ask(1, 2, new=5), ask(3, 4, new=4)), settings=settings)
    trace = replay(DecoderFactory(tiny, name="pages"), schedule)
    assert gram(happenings(schedule, trace)) == (
        "submit a, submit b, admitted a, admitted b, first a, first b, tokens ab, preempted b, tokens a, length a, freed a, "
        "resumed b, tokens b, length b, freed b"
    )
