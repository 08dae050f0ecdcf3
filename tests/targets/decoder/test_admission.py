from __future__ import annotations

import pytest

from targets.models import Model
from targets.protocol import Emitted, Event, Reason, Refused
from tests.targets.decoder.driving import admitted, drain, opened, reasons, request, submit, tokens


def heard(events: list[Event]) -> set[int]:
    """The submissions that got a token."""
    return {event.submission for event in events if isinstance(event, Emitted)}


@pytest.mark.parametrize("slot_order", ["lifo", "fifo"])
def test_fresh_slots_are_given_from_the_lowest(tiny: Model, slot_order: str) -> None:
    decoder = opened(tiny, slots=3, slot_order=slot_order)
    submit(decoder, *[request(index) for index in range(3)])
    assert admitted(decoder.step()) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(("slot_order", "given"), [("lifo", [(3, 0), (4, 1)]), ("fifo", [(3, 2), (4, 0)])])
def test_freed_slots_are_given_in_the_order_asked_for(tiny: Model, slot_order: str, given: list[tuple[int, int]]) -> None:
    decoder = opened(tiny, slots=3, slot_order=slot_order)
    submit(decoder, request(1, new=1), request(2, new=9))
    decoder.step()  # slot 0 is free again, slot 2 was never held
    submit(decoder, request(3, new=9), start=3)
    events = decoder.step()
    decoder.cancel(1, Reason.CANCELLED)
    submit(decoder, request(4, new=9), start=4)
    assert admitted(events + decoder.step()) == given


def test_who_came_first_is_admitted_first(tiny: Model) -> None:
    decoder = opened(tiny, slots=1)
    for who in (3, 1, 2):
        submit(decoder, request(who, new=2), start=who)
    assert [who for who, _ in admitted(drain(decoder))] == [3, 1, 2]


def test_a_slot_that_is_freed_in_a_step_is_given_in_the_next(tiny: Model) -> None:
    decoder = opened(tiny, slots=1)
    submit(decoder, request(1, new=1), request(2, new=1))
    assert heard(decoder.step()) == {0}
    assert heard(decoder.step()) == {1}


def test_no_more_are_admitted_in_a_step_than_was_set(tiny: Model) -> None:
    decoder = opened(tiny, slots=8, admit_max=2)
    submit(decoder, *[request(index, new=9) for index in range(5)])
    assert [len(admitted(decoder.step())) for _ in range(4)] == [2, 2, 1, 0]


def test_more_than_the_queue_holds_are_refused_and_the_rest_is_served(tiny: Model) -> None:
    decoder = opened(tiny, slots=1, queue_max=2)
    events = submit(decoder, *[request(index, new=1) for index in range(3)])
    assert events == [Refused(2, "queue full")]
    decoder.step()
    assert submit(decoder, request(3, new=1), start=3) == []
    assert reasons(drain(decoder)) == {1: Reason.LENGTH, 3: Reason.LENGTH}


def test_without_a_queue_everybody_is_refused(tiny: Model) -> None:
    assert submit(opened(tiny, queue_max=0), request(1)) == [Refused(0, "queue full")]


def test_only_the_named_rows_advance_and_join(tiny: Model) -> None:
    decoder = opened(tiny)
    submit(decoder, request(1), request(2), request(3))
    assert heard(decoder.step((1,))) == {1}
    assert heard(decoder.step((0, 1))) == {0, 1}
    assert heard(decoder.step((7,))) == set()
    assert decoder.step(()) == []
    assert heard(decoder.step()) == {0, 1, 2}


def test_turns_by_name_give_the_answers_of_steps_for_everyone(tiny: Model) -> None:
    asked = [request(1, 2, 3, new=4), request(5, new=4)]
    together = opened(tiny)
    expected = tokens(submit(together, *asked) + drain(together))
    decoder = opened(tiny)
    events = submit(decoder, *asked)
    for who in (0, 0, 1, 0, 1, 1, 0, 1):
        events += decoder.step((who,))
    assert not decoder.live
    assert tokens(events) == expected
