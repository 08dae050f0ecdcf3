"""The conductor: every choice comes from the schedule, and nothing the target does gets out of a replay."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from fuzz.conductor import IDLE_STEPS_MAX, replay
from targets.decoder import DecoderFactory
from targets.protocol import (
    Admitted,
    Asked,
    Audit,
    BadInput,
    Cancel,
    Crashed,
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
    Stalled,
    Step,
    Stepped,
    Submit,
    Trace,
    Wait,
    digest,
    first_departure,
)
from tests.fuzz.scripted import Honest, Scripted

BUSY = Schedule(
    ops=(
        Submit(Request(prompt=(1, 2, 3), max_new_tokens=6, client_id=1)),
        Submit(Request(prompt=(4,), max_new_tokens=9, deadline_s=4)),
        Submit(Request(prompt=(5, 6), max_new_tokens=5, deadline_s=4)),
        Step(2),
        Submit(Request(prompt=(1, 2), max_new_tokens=3)),
        Cancel(0),
        Step(1, rows=(1,)),
        Wait(3, 2),
        Submit(Request(prompt=(7,), max_new_tokens=2)),
    ),
    settings={"slots": 2},
)
"""Joins, leaves, deadlines, a cancel, a wait and named rows, with two slots for five requests."""


def ask(new: int = 3, **extras: int) -> Submit:
    return Submit(Request(prompt=(1,), max_new_tokens=new, **extras))  # type: ignore[arg-type]


def played(target: type[Honest], *ops: Op, audit: bool = False) -> Trace:
    return replay(Scripted(target, audit=audit), Schedule(ops=ops))


def steps(trace: Trace) -> int:
    return sum(isinstance(event, Stepped) for event in trace)


def last(trace: Trace) -> Event:
    """The last event, which is the one that ended the replay, wherever it was raised."""
    event = trace[-1]
    return msgspec.structs.replace(event, at="") if isinstance(event, Crashed) else event


def test_two_replays_of_a_schedule_are_the_same_bit_for_bit(slots: DecoderFactory) -> None:
    first, second = replay(slots, BUSY), replay(slots, BUSY)
    assert first_departure(first, second) is None
    assert digest(first) == digest(second)
    assert {Reason.DEADLINE, Reason.CANCELLED, Reason.LENGTH} == {
        event.reason for event in first if isinstance(event, Finished)
    }


def test_fifty_replays_have_one_order() -> None:
    lives: list[Op] = []
    for index in range(12):
        lives += [ask(1 + index % 4, deadline_s=1 + index % 3), Step(index % 2), Cancel(index // 2)]
    orders = set()
    for _ in range(50):
        trace = played(Honest, *lives)
        orders.add(tuple((type(event).__name__, getattr(event, "submission", None)) for event in trace))
    assert len(orders) == 1


def test_a_schedule_is_played_in_its_order_and_then_drained() -> None:
    trace = played(Honest, ask(2), Step(), ask(1))
    assert [event for event in trace if not isinstance(event, Emitted)] == [
        Asked(0),
        Admitted(0, 0),
        Asked(1),
        Stepped(0),
        Asked(2),
        Admitted(1, 1),
        Asked(3),
        Stepped(1),
        Finished(0, Reason.LENGTH, (2, 3)),
        Freed(0, 0),
        Finished(1, Reason.LENGTH, (2,)),
        Freed(1, 1),
    ]


def test_deadlines_that_come_together_expire_in_the_order_of_submission() -> None:
    for first, second in ((3, 2), (2, 1)):
        trace = played(Honest, ask(9, deadline_s=first), ask(9, deadline_s=first), Step(), ask(9, deadline_s=second))
        ends = [event for event in trace if isinstance(event, Finished)]
        assert [(event.submission, event.reason) for event in ends] == [(who, Reason.DEADLINE) for who in range(3)]


def test_a_step_is_a_second_of_a_deadline() -> None:
    (end,) = [event for event in played(Honest, Step(2), ask(9, deadline_s=3)) if isinstance(event, Finished)]
    assert (end.reason, len(end.tokens)) == (Reason.DEADLINE, 3)


def test_a_wait_holds_the_next_op_until_so_many_tokens_have_come() -> None:
    trace = played(Honest, ask(9), Wait(0, 4), ask(1))
    assert steps(trace[: trace.index(Asked(2))]) == 4


def test_a_wait_ends_with_the_request_it_waits_for() -> None:
    trace = played(Honest, ask(2), Wait(0, 5), ask(1))
    assert steps(trace[: trace.index(Asked(2))]) == 2


@pytest.mark.parametrize("tokens", [0, 2, 3])
def test_a_wait_for_tokens_that_have_come_takes_no_step(tokens: int) -> None:
    trace = played(Honest, ask(9), Step(3), Wait(0, tokens), ask(1))
    assert steps(trace[: trace.index(Asked(3))]) == 3


def test_only_named_rows_advance() -> None:
    trace = played(Honest, ask(9), ask(9), Step(2, rows=(1,)), Step(1, rows=(0,)), Cancel(0), Cancel(1))
    assert [event.submission for event in trace if isinstance(event, Emitted)] == [1, 1, 0]


def test_a_target_is_closed_after_its_replay() -> None:
    factory = Scripted(Honest)
    replay(factory, Schedule(ops=(ask(),)))
    assert factory.opened[0].closed


def test_settings_that_are_not_the_target_s_are_bad_input(slots: DecoderFactory) -> None:
    with pytest.raises(BadInput, match=r"^slots must be a whole number in 1\.\.1024, got 0$"):
        replay(slots, Schedule(ops=(), settings={"slots": 0}))


class Unopenable(Scripted):
    def open(self, settings: Mapping[str, Setting]) -> Honest:
        raise MemoryError("549755813888 bytes")


def test_a_target_that_cannot_be_opened_has_crashed() -> None:
    trace = replay(Unopenable(Honest), Schedule(ops=(ask(),)))
    assert last(trace) == Crashed("open", "MemoryError: 549755813888 bytes", ())


def test_a_crash_names_the_line_of_the_target_s_own_and_is_the_same_crash_on_another_line() -> None:
    (crash,) = replay(Unopenable(Honest), Schedule(ops=(ask(),)))
    assert isinstance(crash, Crashed)
    line = Unopenable.open.__code__.co_firstlineno + 1
    assert crash.at == f"test_conductor.py:{line}, in open"
    assert digest((crash,)) == digest((msgspec.structs.replace(crash, at="test_conductor.py:1, in open"),))


class BreaksInSubmit(Honest):
    def submit(self, submission: int, request: Request) -> list[Event]:
        raise RuntimeError("no\nmore")


class BreaksInStep(Honest):
    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        raise RuntimeError("no\nmore")


class BreaksInCancel(Honest):
    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        raise RuntimeError("no\nmore")


class BreaksInAudit(Honest):
    def audit(self) -> Audit | None:
        raise RuntimeError("no\nmore")


class BreaksInClose(Honest):
    def close(self) -> None:
        raise RuntimeError("no\nmore")


@pytest.mark.parametrize(
    ("target", "ops", "doing"),
    [
        (BreaksInSubmit, (ask(), Step()), "submit"),
        (BreaksInStep, (ask(), Step(), ask()), "step"),
        (BreaksInCancel, (ask(), Step(), Cancel(0)), "cancel"),
        (BreaksInCancel, (ask(9, deadline_s=1), Step(3)), "cancel"),
        (BreaksInAudit, (ask(), Step()), "audit"),
        (BreaksInClose, (ask(),), "close"),
    ],
)
def test_what_the_target_raises_is_an_event_and_ends_the_replay(
    target: type[Honest], ops: tuple[Op, ...], doing: str
) -> None:
    trace = played(target, *ops, audit=True)
    assert last(trace) == Crashed(doing, "RuntimeError: no more", (0,) if doing != "close" else ())
    assert sum(isinstance(event, Crashed) for event in trace) == 1


class SpeaksOfNobody(Honest):
    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        return [Emitted(7, 1)]


class SpeaksOfLessThanNobody(Honest):
    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        return [Emitted(-1, 1)]


@pytest.mark.parametrize("target", [SpeaksOfNobody, SpeaksOfLessThanNobody])
def test_an_event_for_a_request_that_there_is_not_ends_the_replay_as_a_crash(target: type[Honest]) -> None:
    assert isinstance(last(played(target, ask())), Crashed)


class Idle(Honest):
    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        return []


def test_a_target_that_never_advances_is_stalled() -> None:
    trace = played(Idle, ask(), ask(), Step(10), ask())
    assert last(trace) == Stalled((0, 1), IDLE_STEPS_MAX)
    assert steps(trace) == IDLE_STEPS_MAX


def test_a_target_that_idles_while_nobody_asks_is_not_stalled() -> None:
    trace = played(Honest, Step(10), ask(1), Step(10))
    assert not any(isinstance(event, Stalled) for event in trace)
    assert steps(trace) == 20


def test_steps_for_others_do_not_stall_a_request() -> None:
    trace = played(Honest, ask(1), Step(10, rows=(0,)), ask(1), Step(10, rows=(0,)), Step())
    assert not any(isinstance(event, Stalled) for event in trace)


class Endless(Honest):
    def advance(self, submission: int) -> list[Event]:
        return [Emitted(submission, 1)]


def test_a_request_that_gets_tokens_for_ever_is_stalled() -> None:
    trace = played(Endless, ask(2), ask(400))
    assert isinstance(last(trace), Stalled)
    assert last(trace) == Stalled((0,), 0)
    assert steps(trace) < 40


class Chatty(Honest):
    """Says something in every step and never gets on with it. (Gives in by itself, so that the test ends.)"""

    said = 0

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        self.said += 1
        if self.said > 1000:
            raise RuntimeError("a thousand steps and still asked")
        return [Freed(0, 0)]


class Deaf(Chatty):
    """Goes on giving tokens to a request that has ended, while another waits."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        super().step(rows)
        return [Emitted(0, 1)]

    def submit(self, submission: int, request: Request) -> list[Event]:
        return [Refused(0, "no")] if submission == 0 else []


@pytest.mark.parametrize("target", [Chatty, Deaf])
def test_a_target_that_says_much_and_does_nothing_is_stalled(target: type[Honest]) -> None:
    assert isinstance(last(played(target, ask(), ask())), Stalled)


class Chunked(Honest):
    """Takes a prompt in pieces of one token, a piece a step."""

    def __init__(self, opened: int) -> None:
        super().__init__(opened)
        self.cells: dict[int, int] = {}

    def advance(self, submission: int) -> list[Event]:
        cells = self.cells[submission] = self.cells.get(submission, 0) + 1
        if cells < len(self.live[submission].prompt):
            return [Prefilled(submission, cells)]
        return super().advance(submission)


class Recomputing(Chunked):
    """Preempts a request when all its prompt but one token was run, so many times, and starts it again."""

    times = 1

    def __init__(self, opened: int) -> None:
        super().__init__(opened)
        self.preempted: dict[int, int] = {}

    def advance(self, submission: int) -> list[Event]:
        request, before = self.live[submission], self.preempted.get(submission, 0)
        if self.cells.get(submission, 0) == len(request.prompt) - 1 and before < self.times:
            self.preempted[submission] = before + 1
            self.cells[submission] = 0
            return [Preempted(submission, submission), Admitted(submission, submission)]
        return super().advance(submission)


class RecomputingForEver(Recomputing):
    times = 10_000


class SameCells(Honest):
    """Runs the same piece of a prompt for ever."""

    def advance(self, submission: int) -> list[Event]:
        return [Prefilled(submission, 1)]


class FoundAgain(Honest):
    """Preempts a request in every step and finds all of its cells again, which moves nothing."""

    def advance(self, submission: int) -> list[Event]:
        return [Preempted(submission, submission), Admitted(submission, submission, cached=3)]


def long(tokens: int, new: int = 3) -> Submit:
    return Submit(Request(prompt=(1,) * tokens, max_new_tokens=new))


def answered(trace: Trace) -> list[int]:
    """Who ended well."""
    assert not any(isinstance(event, Stalled | Crashed) for event in trace)
    return sorted(event.submission for event in trace if isinstance(event, Finished))


@pytest.mark.parametrize("tokens", [2, IDLE_STEPS_MAX + 1, 200])
def test_a_long_prompt_in_pieces_is_no_standstill(tokens: int) -> None:
    assert answered(played(Chunked, long(tokens), long(tokens + 1))) == [0, 1]


@pytest.mark.parametrize("tokens", [2, 10, 60])
def test_going_through_its_tokens_again_after_a_preemption_is_no_standstill(tokens: int) -> None:
    assert answered(played(Recomputing, long(tokens))) == [0]
    assert answered(played(Recomputing, long(tokens), long(3), long(tokens))) == [0, 1, 2]


@pytest.mark.parametrize("target", [SameCells, RecomputingForEver, FoundAgain])
def test_doing_the_same_over_and_over_is_a_standstill(target: type[Honest]) -> None:
    trace = played(target, long(10), long(12))
    assert isinstance(last(trace), Stalled)
    assert last(trace) == Stalled((0, 1), IDLE_STEPS_MAX)
    assert steps(trace) < 60


def test_the_same_cells_for_ever_stall_nobody_while_another_request_gets_on() -> None:
    class OneOfThem(SameCells):
        def advance(self, submission: int) -> list[Event]:
            return Honest.advance(self, submission) if submission == 1 else super().advance(submission)

    trace = played(OneOfThem, long(2), long(2, new=30))
    assert [event.submission for event in trace if isinstance(event, Finished)] == [1]
    assert isinstance(last(trace), Stalled)
    assert last(trace).submissions == (0,)  # type: ignore[union-attr]
