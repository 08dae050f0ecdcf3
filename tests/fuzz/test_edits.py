"""Edits: each makes a schedule simpler and leaves it a schedule."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.edits import (
    apart,
    decisive,
    drop_request,
    ends,
    keep_requests,
    less_extra,
    plain,
    reductions,
    resized,
    simpler_op,
    sooner,
    with_ops,
)
from fuzz.shrink import sort_key
from targets.protocol import GREEDY, Cancel, Request, Sampling, Schedule, Step, Submit, Wait, submissions
from targets.protocol.schedule import check_references

A, B, C = (Submit(Request(prompt=(token, token), max_new_tokens=4)) for token in (1, 2, 3))
THREE = Schedule(
    ops=(A, B, Step(2, rows=(0, 1)), Cancel(1), C, Wait(2, 3), Step(1, rows=(1,)), Cancel(0), Cancel(2)),
    settings={"slots": 2, "dtype": "float32"},
)
SAMPLING = Sampling(temperature=1.0, seed=4, bias=((1, 2.0), (2, 3.0)), allowed=(1, 2, 3), logprobs=2)
RICH = Submit(
    Request(
        prompt=(1, 2, 3),
        max_new_tokens=4,
        stop=(5, 6),
        stop_sequences=((5, 6), (7,)),
        deadline_s=3,
        client_id=1,
        forced=(9,),
        sampling=SAMPLING,
    )
)


def test_a_request_leaves_with_every_op_that_names_it_and_the_later_ones_move_down() -> None:
    assert drop_request(THREE, 1).ops == (A, Step(2, rows=(0,)), C, Wait(1, 3), Cancel(0), Cancel(1))
    assert drop_request(THREE, 0).ops == (B, Step(2, rows=(0,)), Cancel(0), C, Wait(1, 3), Step(1, rows=(0,)), Cancel(1))
    assert drop_request(THREE, 2).ops == (A, B, Step(2, rows=(0, 1)), Cancel(1), Step(1, rows=(1,)), Cancel(0))


def test_one_more_answer_is_to_the_same_request_when_another_goes_and_to_none_when_that_one_does() -> None:
    first, second = (Submit(Request(prompt=(token,), max_new_tokens=2)) for token in (1, 2))
    more = Submit(Request(prompt=(2,), max_new_tokens=2, sample_of=1))
    schedule = Schedule(ops=(first, second, Step(), more, Submit(Request(prompt=(1,), max_new_tokens=2, sample_of=0))))
    siblings = [[request.sample_of for request in submissions(drop_request(schedule, gone))] for gone in range(4)]
    assert siblings == [[None, 0, None], [None, None, 0], [None, None, 0], [None, None, 1]]
    for gone in range(4):
        check_references(drop_request(schedule, gone))


def test_a_session_goes_on_from_the_same_request_when_another_goes_and_from_none_when_that_one_does() -> None:
    turns = [Submit(Request(prompt=(turn,), max_new_tokens=2, continues=(None, None, 1)[turn])) for turn in range(3)]
    schedule = Schedule(ops=tuple(turns))
    before = [[request.continues for request in submissions(drop_request(schedule, gone))] for gone in range(3)]
    assert before == [[None, 0], [None, None], [None, None]]
    assert [less.continues for less in less_extra(turns[2].request)] == [None]


def test_only_the_named_requests_are_kept() -> None:
    assert keep_requests(THREE, {2}).ops == (C, Wait(0, 3), Cancel(0))
    assert keep_requests(THREE, {0, 1, 2}) == THREE
    assert keep_requests(THREE, {0, 2}) == drop_request(THREE, 1)


def test_steps_that_come_to_stand_together_become_one() -> None:
    assert with_ops(THREE, [Step(1), Step(2), A, Step(1, rows=(0,)), Step(1, rows=(0,)), Step(1)]).ops == (
        Step(3),
        A,
        Step(2, rows=(0,)),
        Step(1),
    )


def test_every_reduction_is_a_simpler_schedule_whose_ops_name_what_there_is() -> None:
    schedule = Schedule(ops=(*THREE.ops, RICH, Step(3)), settings=THREE.settings)
    candidates = [candidate for candidate in reductions(schedule) if candidate != schedule]
    assert len(candidates) > 30
    for candidate in candidates:
        check_references(candidate)
        assert sort_key(candidate) < sort_key(schedule)


def test_reductions_keep_fixed_settings() -> None:
    assert all(candidate.settings["dtype"] == "float32" for candidate in reductions(THREE, {"dtype"}))
    assert any("slots" not in candidate.settings for candidate in reductions(THREE, {"dtype"}))


def test_the_last_request_and_the_last_token_are_never_taken() -> None:
    smallest = Schedule(ops=(Submit(Request(prompt=(1,), max_new_tokens=1)),))
    assert {candidate.key() for candidate in reductions(smallest)} == {smallest.key()}
    assert resized(Request(prompt=(1, 2), max_new_tokens=2), prompt=0, new=0) == Request(prompt=(1,), max_new_tokens=1)


def test_a_request_is_never_made_longer() -> None:
    request = Request(prompt=(1, 2), max_new_tokens=0)
    assert resized(request, prompt=9, new=9) == request
    assert resized(Request(prompt=(), max_new_tokens=3), prompt=1) == Request(prompt=(), max_new_tokens=3)


@pytest.mark.parametrize(("prompt", "kept"), [((), ()), ((1,), (1,)), ((1, 2), (1, 2)), ((1, 2, 3, 4), (1, 4))])
def test_a_prompt_s_two_ends_are_kept(prompt: tuple[int, ...], kept: tuple[int, ...]) -> None:
    assert ends(Request(prompt=prompt, max_new_tokens=1)).prompt == kept


def test_extras_are_taken_one_by_one_and_all_at_once() -> None:
    assert plain(RICH.request) == Request(prompt=(1, 2, 3), max_new_tokens=4)
    greedy = msgspec.structs.replace(RICH.request, sampling=GREEDY, stop_sequences=())
    left = [(less.stop, less.deadline_s, less.client_id, less.forced) for less in less_extra(greedy)]
    assert left == [
        ((), 3, 1, (9,)),
        ((5,), 3, 1, (9,)),
        ((6,), 3, 1, (9,)),
        ((5, 6), None, 1, (9,)),
        ((5, 6), 3, None, (9,)),
        ((5, 6), 3, 1, ()),
    ]


def test_penalties_that_are_asked_for_become_strong_and_no_others() -> None:
    asked = Request(prompt=(1,), max_new_tokens=4, sampling=Sampling(temperature=1.0, repetition_penalty=1.1))
    assert decisive(asked).sampling == Sampling(temperature=1.0, repetition_penalty=0.01)
    asked = Request(prompt=(1,), max_new_tokens=4, sampling=Sampling(presence_penalty=0.5))
    assert decisive(asked).sampling == Sampling(presence_penalty=-50.0)
    assert decisive(RICH.request) == RICH.request


def test_parameters_are_taken_all_at_once_one_by_one_and_half_of_their_ids() -> None:
    asked = Request(prompt=(1,), max_new_tokens=4, stop_sequences=((5, 6), (7,)), sampling=SAMPLING)
    without = {"temperature": 0.0, "seed": 0, "bias": (), "allowed": (), "logprobs": 0}
    halved: list[dict[str, object]] = [
        {"allowed": (1,)},
        {"allowed": (2, 3)},
        {"bias": ((1, 2.0),)},
        {"bias": ((2, 3.0),)},
    ]
    assert [less.sampling for less in less_extra(asked) if less.sampling != SAMPLING] == [
        GREEDY,
        *(msgspec.structs.replace(SAMPLING, **{name: value}) for name, value in without.items()),
        *(msgspec.structs.replace(SAMPLING, **changes) for changes in halved),
    ]
    sequences = [less.stop_sequences for less in less_extra(asked) if less.sampling == SAMPLING]
    assert sequences == [(), ((5, 6),), ((7,),)]


def test_fewer_steps_come_with_answers_that_much_shorter_of_those_before_them() -> None:
    schedule = Schedule(ops=(A, B, Step(3), C))
    budgets = [
        ([request.max_new_tokens for request in submissions(candidate)], candidate.ops[2])
        for candidate in sooner(schedule, 2, 2)
    ]
    assert budgets == [([2, 2, 4], Step(1)), ([2, 4, 4], Step(1)), ([4, 2, 4], Step(1))]


def test_a_wait_and_named_rows_give_way_to_plain_steps() -> None:
    assert list(simpler_op(Wait(0, 3))) == [Step(), Step(3)]
    assert list(simpler_op(Wait(0, 1))) == [Step()]
    assert Step(5) in simpler_op(Step(5, rows=(0,)))
    assert all(op.count < 5 for op in simpler_op(Step(5)) if isinstance(op, Step))
    assert list(simpler_op(Step(1))) == []


def test_requests_that_come_together_are_set_a_step_apart() -> None:
    assert apart(Schedule(ops=(A, B, Step(2), C))).ops == (A, Step(), B, Step(2), C)
