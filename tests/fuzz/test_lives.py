"""Lives: how arrivals, cancels, waits and turns become a list of ops."""

from __future__ import annotations

from fuzz.strategies import Life, to_ops
from fuzz.strategies.lives import Turn
from targets.protocol import Cancel, Request, Schedule, Step, Submit, Wait
from targets.protocol.schedule import check_references

A, B, C = (Request(prompt=(token,), max_new_tokens=1) for token in (1, 2, 3))


def test_requests_are_submitted_in_the_order_in_which_they_arrive() -> None:
    assert to_ops([Life(A, arrival=3), Life(B), Life(C, arrival=1)]) == (
        Submit(B),
        Step(1),
        Submit(C),
        Step(2),
        Submit(A),
    )


def test_requests_that_arrive_together_keep_their_order() -> None:
    assert to_ops([Life(A), Life(B), Life(C)]) == (Submit(A), Submit(B), Submit(C))


def test_a_cancel_names_the_submission_and_not_the_life() -> None:
    assert to_ops([Life(A, arrival=1, cancel_after=2), Life(B)]) == (
        Submit(B),
        Step(1),
        Submit(A),
        Step(2),
        Cancel(1),
    )


def test_in_one_step_submits_come_before_cancels() -> None:
    assert to_ops([Life(A, cancel_after=0), Life(B)]) == (Submit(A), Submit(B), Cancel(0))


def test_a_request_waits_for_the_tokens_of_an_earlier_one() -> None:
    assert to_ops([Life(A), Life(B, after=(0, 3))]) == (Submit(A), Wait(0, 3), Submit(B))


def test_a_request_goes_on_from_an_earlier_one_by_its_submission_and_from_none_that_comes_later() -> None:
    (_, _, last) = to_ops([Life(A, arrival=1), Life(B, arrival=1, before=0), Life(C)])[1:]
    assert isinstance(last, Submit)
    assert last.request.continues == 1
    assert to_ops([Life(A, before=1), Life(B, arrival=1)]) == (Submit(A), Step(1), Submit(B))


def test_a_request_does_not_wait_for_one_that_comes_later() -> None:
    assert to_ops([Life(A, after=(1, 3)), Life(B, arrival=1)]) == (Submit(A), Step(1), Submit(B))


def test_in_a_turn_the_named_lives_advance_one_by_one() -> None:
    ops = to_ops([Life(A), Life(B)], [Turn(start=1, steps=3, lives=(0, 1))])
    assert ops == (Submit(A), Submit(B), Step(1), Step(1, rows=(0,)), Step(1, rows=(1,)), Step(1, rows=(0,)))


def test_a_turn_names_only_those_that_have_arrived() -> None:
    ops = to_ops([Life(A), Life(B, arrival=5)], [Turn(start=1, steps=2, lives=(0, 1)), Turn(start=0, steps=1, lives=(1,))])
    assert ops == (Submit(A), Step(1), Step(1, rows=(0,)), Step(1, rows=(0,)), Step(4), Submit(B))
    check_references(Schedule(ops=ops))
