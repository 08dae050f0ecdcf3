"""Smaller: numbers are turned down together with the tokens that they allow to be fewer."""

from __future__ import annotations

import pytest

from fuzz.shrink import sort_key
from fuzz.smaller import coincidences, crowd, fewer, fitted, largest, lowered, numbers, pressed, remainders, shorter, tighter
from targets.protocol import Knob, Request, Schedule, Setting, Step, Submit, check_settings, submissions

KNOBS = (
    Knob(name="page", default=16, values=(16, 1, 4), low=1, high=64),
    Knob(name="pool", default=100, values=(100, 40), low=1, high=1000),
    Knob(name="limit", default=0, values=(0, 4), low=0, high=1000),
    Knob(name="order", default="a", values=("a", "b")),
    Knob(name="device", default=0, values=(0, 1), low=0, high=8, drawn=False),
)
PAGE, POOL, LIMIT = NUMBERS = numbers(KNOBS, ())


def ask(prompt: int, new: int) -> Submit:
    return Submit(Request(prompt=tuple(range(1, 1 + prompt)), max_new_tokens=new))


def schedule(**settings: Setting) -> Schedule:
    return Schedule(ops=(ask(8, 4), Step(2), ask(3, 6), ask(1, 1)), settings=settings)


def sizes(one: Schedule) -> list[tuple[int, int]]:
    return [(len(request.prompt), request.max_new_tokens) for request in submissions(one)]


def test_a_number_is_drawn_and_has_a_lowest_value_and_is_not_the_run_s_own() -> None:
    assert [knob.name for knob in NUMBERS] == ["page", "pool", "limit"]
    assert [knob.name for knob in numbers(KNOBS, {"pool"})] == ["page", "limit"]


def test_what_requests_come_to_is_the_largest_or_all_prompts_with_a_token_each() -> None:
    assert largest(schedule()) == 12
    assert crowd(schedule()) == 9 + 4 + 2


def test_only_numbers_that_are_set_and_too_large_are_fitted() -> None:
    assert fitted(schedule(pool=50, page=4, order="b"), NUMBERS, largest).settings == {"pool": 12, "page": 4, "order": "b"}
    assert fitted(schedule(), NUMBERS, largest) == schedule()


def test_a_number_goes_to_its_lowest_or_little_more_and_never_up() -> None:
    turned = [(less.settings["page"], less.settings["pool"]) for less, _ in lowered(schedule(pool=50), NUMBERS, PAGE)]
    assert turned == [(1, 12), (1, 15), (2, 12), (4, 12)]
    assert [less.settings["page"] for less, _ in lowered(schedule(page=2), NUMBERS, PAGE)] == [1, 1]
    assert list(lowered(schedule(), NUMBERS, LIMIT)) == []


def test_no_shape_is_longer_than_what_it_was() -> None:
    shapes = [sizes(less) for less in shorter(schedule())]
    assert shapes[0] == [(1, 1), (1, 1), (1, 1)]
    assert [(4, 3), (3, 3), (1, 1)] in shapes  # none longer than half of the longest
    before = sizes(schedule())
    assert all(now <= then for shape in shapes for now, then in zip(sum(shape, ()), sum(before, ()), strict=True))


def test_a_half_is_left_out_of_the_middle_of_a_prompt_but_not_its_beginning() -> None:
    prompts = [[request.prompt for request in submissions(less)] for less in shorter(schedule())]
    assert [(1, 5, 6, 7, 8), (1, 2, 3), (1,)] in prompts


def test_what_goes_into_a_prompt_many_times_goes_into_it_once_and_as_much_is_left_over() -> None:
    (less,) = remainders(schedule(page=3), NUMBERS)
    assert sizes(less) == [(5, 4), (3, 6), (1, 1)]
    assert list(remainders(schedule(page=4, pool=50), NUMBERS)) == []  # once only
    assert list(remainders(schedule(page=1), NUMBERS)) == []


def test_pressure_is_put_on_few_tokens_where_a_number_is_set() -> None:
    assert list(pressed(schedule(order="b"), NUMBERS)) == []
    first, *_ = found = list(pressed(schedule(pool=50), NUMBERS))
    assert first == Schedule(ops=(ask(1, 3), ask(1, 3), ask(1, 1)), settings={"pool": 4, "page": 1})
    assert any(isinstance(op, Step) for less in found for op in less.ops)


def test_a_number_is_one_less_with_one_token_less_of_all_or_of_one() -> None:
    found = list(tighter(schedule(pool=50), NUMBERS))
    assert {less.settings["pool"] for less in found} == {49}
    assert [sizes(less) for less in found][:4] == [
        [(7, 4), (2, 6), (1, 1)],
        [(8, 3), (3, 5), (1, 1)],
        [(7, 4), (3, 6), (1, 1)],
        [(8, 3), (3, 6), (1, 1)],
    ]
    assert list(tighter(schedule(pool=1), NUMBERS)) == []


def test_a_request_less_comes_with_a_step_or_with_the_least_number_that_is_drawn() -> None:
    found = list(fewer(schedule(pool=50), NUMBERS))
    assert [len(less.ops) for less in found[:3]] == [3, 3, 4], "steps that follow each other are one"
    assert all(isinstance(less.ops[-2], Step) for less in found[:3])
    assert {less.settings["pool"] for less in found} == {40, 50}
    assert {len(submissions(less)) for less in found} == {2}
    assert list(fewer(Schedule(ops=(ask(1, 9), ask(1, 1))), NUMBERS)) == []


def test_other_ids_are_ids_of_the_schedule_and_short_schedules_have_none() -> None:
    found = list(coincidences(schedule(), NUMBERS))
    assert found
    assert {token for less in found for request in submissions(less) for token in request.prompt} <= set(range(1, 9))
    assert {len(request.prompt) for less in found for request in submissions(less)} == {3}
    assert list(coincidences(Schedule(ops=(ask(1, 3), ask(2, 2))), NUMBERS)) == []


@pytest.mark.parametrize("settings", [{}, {"pool": 50}, {"pool": 1, "page": 1, "limit": 0}], ids=str)
def test_every_number_is_one_that_its_knob_takes(settings: dict[str, Setting]) -> None:
    one = schedule(**settings)
    moved = [less for knob in NUMBERS for less, _ in lowered(one, NUMBERS, knob)]
    for way in (pressed, fewer, tighter, coincidences):
        moved += way(one, NUMBERS)
    for less in moved:
        check_settings(KNOBS, less.settings)
        assert len(less.settings) <= 3


def test_under_pressure_and_one_tighter_a_schedule_is_simpler_although_more_is_set() -> None:
    one = schedule(pool=50)
    assert all(sort_key(less) < sort_key(one) for less in (*pressed(one, NUMBERS), *fewer(one, NUMBERS)))
