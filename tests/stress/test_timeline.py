"""What clients saw becomes a schedule in logical time: who asked after what had been heard."""

from __future__ import annotations

from stress.recording.timeline import overlapping, schedule_of, variations
from stress.transcript import Exchange, Outcome, Piece
from targets.protocol import Cancel, Request, Submit, Wait, submissions


def heard(number: int, sent_s: float, *at_s: float, outcome: Outcome = "answered", ended_s: float | None = None) -> Exchange:
    return Exchange(
        number=number,
        user="one",
        request=Request(prompt=(number + 1,), max_new_tokens=9, sample_of=0, deadline_s=3),
        sent_s=sent_s,
        ended_s=ended_s or max((sent_s, *at_s)),
        outcome=outcome,
        pieces=tuple(Piece(at_s=at, tokens=(7,)) for at in at_s),
    )


FIRST = heard(0, 0.0, 1.0, 2.0, 3.0)
SECOND = heard(1, 2.5, 2.6, 2.7, outcome="cancelled", ended_s=2.8)
THIRD = heard(2, 2.9, 4.0)


def plain(number: int) -> Submit:
    return Submit(Request(prompt=(number + 1,), max_new_tokens=9))


def test_a_request_waits_for_what_had_been_heard_when_it_was_sent() -> None:
    schedule = schedule_of([FIRST, SECOND, THIRD], {"slots": 2})
    assert schedule.ops == (plain(0), Wait(0, 2), plain(1), Wait(1, 2), Cancel(1), plain(2))
    assert schedule.settings == {"slots": 2}


def test_only_those_that_were_open_with_the_victim_overlap_it() -> None:
    before, after = heard(3, -2.0, -1.0), heard(4, 5.0, 6.0)
    assert overlapping([THIRD, after, SECOND, before, FIRST], THIRD) == [FIRST, THIRD]
    assert overlapping([after, FIRST], after) == [after]


def test_variations_begin_with_the_plain_one_then_take_history_in_and_move_waits() -> None:
    before = heard(3, -2.0, -1.0)
    unheard = [heard(4, 2.6, outcome="refused"), heard(5, 2.6, outcome="unreached")]
    every = list(variations([before, FIRST, SECOND, THIRD, *unheard], THIRD, {}))
    assert [request.prompt for request in submissions(every[0])] == [(1,), (3,)]
    assert [request.prompt for request in submissions(every[1])] == [(4,), (1,), (2,), (3,)]
    assert len({schedule.key() for schedule in every}) == len(every) > 2, "each is another one"
    assert list(variations([before, FIRST, SECOND, THIRD, *unheard], THIRD, {})) == every, "and the same each time"
