"""The shrinker against failures whose smallest schedule is known, without any target."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import pytest
import trio

from fuzz.edits import reductions
from fuzz.shrink import EVALUATIONS_MAX, Shrunk, shrink, sort_key
from oracle.finding import Finding
from targets.protocol import Cancel, CheckName, Kind, Knob, Op, Request, Schedule, Setting, Step, Submit, Wait, submissions

KNOBS = (Knob(name="slots", default=4, values=(4, 1, 2), low=1, high=8), Knob(name="order", default="a", values=("a", "b")))
LARGE = Schedule(
    ops=(
        *(Submit(Request(prompt=tuple(range(20 + who, 40)), max_new_tokens=9, client_id=who % 3)) for who in range(6)),
        Step(4),
        Submit(Request(prompt=(7, 8, 9), max_new_tokens=5, stop=(1, 2, 3), deadline_s=9)),
        Wait(3, 2),
        Cancel(2),
        Step(2, rows=(0, 6)),
        Cancel(6),
    ),
    settings={"slots": 2, "order": "b"},
)

Fails = Callable[[Schedule], bool]


class Evaluator:
    """Says of a schedule whether it fails, and remembers what it was asked."""

    def __init__(self, fails: Fails, victim: int | None) -> None:
        self.fails = fails
        self.victim = victim
        self.asked: list[Schedule] = []

    async def __call__(self, schedule: Schedule) -> Finding | None:
        self.asked.append(schedule)
        return finding(self.victim) if self.fails(schedule) else None


def finding(victim: int | None) -> Finding:
    return Finding(kind=Kind.LEAK, check=CheckName.SWAP, what="", submission=victim)


def shrunk(
    fails: Fails,
    schedule: Schedule = LARGE,
    fixed: Collection[str] = (),
    victim: int | None = 0,
    knobs: tuple[Knob, ...] = KNOBS,
) -> Shrunk:
    """The smallest schedule found; it fails, every step towards it was asked for, and none was asked for twice."""
    evaluate = Evaluator(fails, victim)
    result = trio.run(shrink, schedule, finding(victim), knobs, fixed, evaluate)
    assert fails(result.schedule)
    keys = [asked.key() for asked in evaluate.asked]
    assert len(keys) == len(set(keys)) == result.evaluations <= EVALUATIONS_MAX
    return result


def tokens(schedule: Schedule) -> int:
    return sum(len(request.prompt) for request in submissions(schedule))


def ask(*prompt: int, new: int = 1, **extras: object) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, **extras))  # type: ignore[arg-type]


def has(kind: type[Op]) -> Fails:
    return lambda schedule: any(isinstance(op, kind) for op in schedule.ops)


KNOWN: dict[str, tuple[Fails, tuple[Op, ...], dict[str, Setting]]] = {
    "anything": (lambda schedule: True, (ask(1),), {}),
    "two requests": (lambda schedule: len(submissions(schedule)) >= 2, (ask(1), ask(2)), {}),
    "seven tokens": (lambda schedule: tokens(schedule) >= 7, (ask(*[1] * 7),), {}),
    "a budget of three": (
        lambda schedule: any(request.max_new_tokens >= 3 for request in submissions(schedule)),
        (ask(1, new=3),),
        {},
    ),
    "a cancel": (has(Cancel), (ask(1), Cancel(0)), {}),
    "named rows": (
        lambda schedule: any(isinstance(op, Step) and op.rows for op in schedule.ops),
        (ask(1), Step(1, rows=(0,))),
        {},
    ),
    "a setting": (lambda schedule: schedule.settings.get("order") == "b", (ask(1),), {"order": "b"}),
    "a stop id": (lambda schedule: any(request.stop for request in submissions(schedule)), (ask(1, stop=(1,)),), {}),
    "a deadline": (
        lambda schedule: any(request.deadline_s for request in submissions(schedule)),
        (ask(1, deadline_s=9),),
        {},
    ),
    "two prompts that begin alike": (
        lambda schedule: len({request.prompt[:1] for request in submissions(schedule)}) < len(submissions(schedule)),
        (ask(1), ask(1)),
        {},
    ),
    "two prompts that end alike": (
        lambda schedule: len({request.prompt[-1] for request in submissions(schedule)}) < len(submissions(schedule)),
        (ask(1), ask(1)),
        {},
    ),
    "more requests than slots": (
        lambda schedule: len(submissions(schedule)) > int(schedule.settings.get("slots", 4)),
        (ask(1), ask(2)),
        {"slots": 1},
    ),
}


@pytest.mark.parametrize(("fails", "ops", "settings"), KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("victim", [0, 6, None])
def test_the_smallest_known_schedule_is_found(
    fails: Fails, ops: tuple[Op, ...], settings: dict[str, Setting], victim: int | None
) -> None:
    result = shrunk(fails, victim=victim)
    assert result.minimal
    assert result.schedule == Schedule(ops=ops, settings=settings)


@pytest.mark.parametrize("fails", [fails for fails, _, _ in KNOWN.values()], ids=KNOWN)
def test_no_single_reduction_of_the_result_fails(fails: Fails) -> None:
    result = shrunk(fails)
    assert not any(fails(less) for less in reductions(result.schedule) if sort_key(less) < sort_key(result.schedule))


def test_a_result_that_is_called_minimal_is_so_after_its_ids_were_renamed() -> None:
    def fails(schedule: Schedule) -> bool:
        """Large ids hide how few tokens it takes."""
        largest = max(max(request.prompt) for request in submissions(schedule))
        return tokens(schedule) >= (4 if largest > 9 else 2)

    result = shrunk(fails)
    assert result.minimal
    assert not any(fails(less) for less in reductions(result.schedule) if sort_key(less) < sort_key(result.schedule))


def test_a_step_is_taken_from_a_wait_and_from_the_answer_that_it_waits_for() -> None:
    def fails(schedule: Schedule) -> bool:
        """The first request must end in just the step before the second comes."""
        steps = sum(op.count for op in schedule.ops[1:-1] if isinstance(op, Step))
        first = submissions(schedule)[0]
        return len(submissions(schedule)) == 2 and steps == first.max_new_tokens > 0

    schedule = Schedule(ops=(ask(1, 2, new=6), Step(6), ask(3, new=4)))
    assert shrunk(fails, schedule).schedule == Schedule(ops=(ask(1), Step(), ask(2)))


PAGED = (
    Knob(name="page", default=16, values=(16, 4, 1), low=1, high=64),
    Knob(name="pool", default=1024, values=(1024, 160), low=1, high=4096),
)


def a_page_is_full(schedule: Schedule) -> bool:
    """Somebody's prompt fills a page of more than one cell."""
    page = int(schedule.settings.get("page", 16))
    return page > 1 and any(len(request.prompt) >= page for request in submissions(schedule))


def the_pool_runs_dry(schedule: Schedule) -> bool:
    """All begin, and their answers do not fit beside each other, though each alone does."""
    page, pool = int(schedule.settings.get("page", 16)), int(schedule.settings.get("pool", 1024))
    starts = [-(-(len(request.prompt) + 1) // page) for request in submissions(schedule)]
    ends = [-(-(len(request.prompt) + request.max_new_tokens) // page) for request in submissions(schedule)]
    return sum(starts) <= pool // page < sum(ends) and max(ends) <= pool // page


def twenty_tokens_pass(schedule: Schedule) -> bool:
    """The first request takes as many steps as its answer has, and one more for every four tokens of its prompt."""
    request = submissions(schedule)[0]
    return len(request.prompt) // 4 + request.max_new_tokens >= 6


def one_token_is_left_over(schedule: Schedule) -> bool:
    """The first prompt is run a page at a time, and one token is left for the last time."""
    page = int(schedule.settings.get("page", 64))
    length = len(submissions(schedule)[0].prompt)
    return length > page > 1 and length % page == 1


@pytest.mark.parametrize(
    ("fails", "schedule", "tokens_known"),
    [
        (one_token_is_left_over, Schedule(ops=(ask(*[1] * 65, new=4),), settings={"page": 8}), 4),
        (a_page_is_full, Schedule(ops=(ask(*range(1, 30), new=4), ask(1))), 3),
        (the_pool_runs_dry, Schedule(ops=(ask(*[1] * 30, new=20), ask(*[2] * 31, new=20)), settings={"pool": 80}), 5),
        (twenty_tokens_pass, Schedule(ops=(ask(*range(1, 22), new=2),)), 7),
    ],
)
def test_numbers_get_smaller_together_with_what_they_keep_long(fails: Fails, schedule: Schedule, tokens_known: int) -> None:
    assert fails(schedule)
    result = shrunk(fails, schedule, knobs=PAGED)
    count = tokens(result.schedule) + sum(request.max_new_tokens for request in submissions(result.schedule))
    assert result.minimal
    assert result.evaluations <= 100
    assert count <= tokens_known + 2


def test_who_waited_for_a_slot_needs_nobody_to_wait_for() -> None:
    def cancelled_when_it_had_just_begun(schedule: Schedule) -> bool:
        """One request a step begins, in order; the last is cancelled one step after it began."""
        last = len(submissions(schedule)) - 1
        return any(
            isinstance(op, Cancel)
            and op.submission == last
            and sum(step.count for step in schedule.ops[:index] if isinstance(step, Step)) == last + 1
            for index, op in enumerate(schedule.ops)
        )

    crowd = Schedule(ops=(*(ask(token) for token in (1, 2, 3, 4, 5)), Step(5), Cancel(4)))
    assert cancelled_when_it_had_just_begun(crowd)
    result = shrunk(cancelled_when_it_had_just_begun, crowd, victim=4)
    assert result.schedule == Schedule(ops=(ask(1), Step(), Cancel(0)))
    assert result.evaluations <= 12


def test_what_a_fixed_number_leaves_over_stays_when_the_prompt_is_cut() -> None:
    schedule = Schedule(ops=(ask(*[1] * 65),), settings={"page": 8})
    assert shrunk(one_token_is_left_over, schedule, {"page"}, knobs=PAGED).schedule.ops == (ask(*[1] * 9),)


def test_a_step_stands_in_for_those_who_went_on_after_a_cancel() -> None:
    def goes_on_when_it_has_ended(schedule: Schedule) -> bool:
        """The last request is cancelled one step after it began, and somebody else, or the schedule, goes on behind that."""
        last = len(submissions(schedule)) - 1
        cancels = [index for index, op in enumerate(schedule.ops) if isinstance(op, Cancel) and op.submission == last]
        return any(
            sum(step.count for step in schedule.ops[:index] if isinstance(step, Step)) == last + 1
            and (last > 0 or any(isinstance(op, Step) for op in schedule.ops[index:]))
            for index in cancels
        )

    crowd = Schedule(ops=(*(ask(token) for token in (1, 2, 3, 4, 5)), Step(5), Cancel(4)))
    result = shrunk(goes_on_when_it_has_ended, crowd, victim=4)
    assert result.schedule == Schedule(ops=(ask(1), Step(), Cancel(0), Step()))


def test_ids_that_meet_by_chance_are_looked_for_among_fewer() -> None:
    def fails(schedule: Schedule) -> bool:
        """The ids of some two prompts' first pages are alike modulo seven, and not equal."""
        page = int(schedule.settings.get("page", 16))
        firsts = [request.prompt[:page] for request in submissions(schedule) if len(request.prompt) >= page]
        return len({sum(first) % 7 for first in firsts}) < len(set(firsts))

    schedule = Schedule(ops=(ask(*range(100, 120)), ask(*range(205, 225))))
    assert fails(schedule)
    result = shrunk(fails, schedule, knobs=PAGED)
    assert len(submissions(result.schedule)) == 2
    assert tokens(result.schedule) <= 4


def test_a_schedule_that_is_minimal_already_is_kept() -> None:
    smallest = Schedule(ops=(ask(1), ask(1)))
    assert shrunk(lambda schedule: len(submissions(schedule)) >= 2, smallest).schedule == smallest


def test_fixed_settings_are_no_part_of_the_search() -> None:
    result = shrunk(lambda _: True, fixed={"order"})
    assert result.schedule.settings == {"order": "b"}


def test_a_result_is_not_called_minimal_when_the_evaluations_ran_out() -> None:
    schedule = Schedule(ops=(ask(*range(1, 1000)),))
    least = [tokens(schedule)]

    def fails(candidate: Schedule) -> bool:
        """Only one token at a time can be taken away."""
        one_less = tokens(candidate) == least[0] - 1
        least[0] -= one_less
        return one_less or tokens(candidate) == least[0]

    result = shrunk(fails, schedule)
    assert result.evaluations == EVALUATIONS_MAX
    assert not result.minimal


ORDER: tuple[tuple[str, Schedule], ...] = (
    ("nothing to add", Schedule(ops=(ask(1),))),
    ("larger ids", Schedule(ops=(ask(2),))),
    ("an extra", Schedule(ops=(ask(1, client_id=0),))),
    ("a setting", Schedule(ops=(ask(1),), settings={"slots": 1})),
    ("an op", Schedule(ops=(ask(1), Step(0)))),
    ("a step", Schedule(ops=(ask(1), Step(1)))),
    ("more ops", Schedule(ops=(ask(1), Step(1), Cancel(0)))),
    ("more tokens", Schedule(ops=(ask(1, 1),))),
    ("more requests", Schedule(ops=(ask(1), ask(1)))),
)


def test_simpler_is_fewer_requests_then_tokens_then_ops_then_steps_then_settings_then_extras_then_ids() -> None:
    keys = [sort_key(schedule) for _, schedule in ORDER]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_shrinking_accepts_only_what_fails_and_is_simpler() -> None:
    accepted: list[Schedule] = []

    def fails(schedule: Schedule) -> bool:
        fine = tokens(schedule) % 2 == 1
        if fine:
            accepted.append(schedule)
        return fine

    odd = msgspec.structs.replace(LARGE, ops=(*LARGE.ops, ask(1)) if tokens(LARGE) % 2 == 0 else LARGE.ops)
    result = shrunk(fails, odd)
    keys = [sort_key(schedule) for schedule in accepted]
    assert sort_key(result.schedule) == min(keys)
    assert result.schedule == Schedule(ops=(ask(1),))
