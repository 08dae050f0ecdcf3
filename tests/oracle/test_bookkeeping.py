"""Bookkeeping: each request's stream is its answer, ends once, and ends for the right reason."""

from __future__ import annotations

import msgspec
import pytest
import torch

from oracle.checks.bookkeeping import bookkeeping
from targets.protocol import (
    Admitted,
    Asked,
    Cancel,
    Control,
    Crashed,
    Emitted,
    Event,
    Finished,
    Freed,
    Reason,
    Refused,
    Request,
    Sampling,
    Schedule,
    Stalled,
    Step,
    Stepped,
    Submit,
)
from tests.oracle.handmade import FORCED, asked, sentences

LENGTH, STOP, CONTEXT, CANCELLED, DEADLINE = (
    Reason.LENGTH,
    Reason.STOP,
    Reason.CONTEXT,
    Reason.CANCELLED,
    Reason.DEADLINE,
)

SAMPLING = msgspec.structs.replace(FORCED, sampling=True)


def one(*ops: Step | Cancel, **extras: object) -> Schedule:
    """One request for two tokens, and what else is asked."""
    return Schedule(ops=(Submit(Request(**{"prompt": (1, 2), "max_new_tokens": 2, **extras})), *ops))  # type: ignore[arg-type]


def stream(*events: Event, start: int = 0) -> list[Event]:
    """A request's events after it has asked, each in a step of its own, behind `start` steps without any."""
    told: list[Event] = [Asked(0), *(Stepped(step) for step in range(start))]
    for step, event in enumerate(events, start=start):
        told += [Stepped(step), event]
    return told


HONEST: dict[str, tuple[Schedule, list[Event]]] = {
    "a full answer": (one(), stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6)))),
    "a stop token": (one(stop=(5,)), stream(Emitted(0, 5), Finished(0, STOP, (5,)))),
    "a stop token as the last of the budget": (
        one(stop=(6,)),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, STOP, (5, 6))),
    ),
    "a stop sequence": (
        one(max_new_tokens=3, stop_sequences=((5, 6), (6, 5))),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, STOP, (5, 6))),
    ),
    "a stop token before the minimum": (
        one(max_new_tokens=3, stop=(5,), stop_sequences=((5,),), sampling=Sampling(min_new_tokens=1), forced=(5, 5)),
        stream(Emitted(0, 5), Emitted(0, 5), Finished(0, STOP, (5, 5))),
    ),
    "nothing asked for": (one(max_new_tokens=0), [Asked(0), Finished(0, LENGTH, ())]),
    "a refusal": (one(), [Asked(0), Refused(0, "queue full")]),
    "a cancel": (one(Step(), Cancel(0)), [*stream(Emitted(0, 5)), Asked(2), Finished(0, CANCELLED, (5,))]),
    "a deadline": (one(deadline_s=3), stream(Emitted(0, 5), Finished(0, DEADLINE, (5,)), start=2)),
    "no room left": (
        one(prompt=tuple(range(1, 64))),
        stream(Emitted(0, 5), Finished(0, CONTEXT, (5,))),
    ),
    "forced tokens": (one(forced=(5,)), stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6)))),
    "a crash, after which nobody ends": (one(), stream(Emitted(0, 5), Crashed("step", "E: e", (0,)))),
    "a stall, after which nobody ends": (one(), stream(Emitted(0, 5), Stalled((0,), 4))),
}

AMISS: dict[str, tuple[Schedule, list[Event], str]] = {
    "lost token": (
        one(),
        stream(Emitted(0, 5), Finished(0, LENGTH, (5, 6))),
        "request #0 streamed [5] but ends with [5, 6]",
    ),
    "token outside the vocabulary": (
        one(),
        stream(Emitted(0, 16), Emitted(0, 6), Finished(0, LENGTH, (16, 6))),
        "request #0 gets token 16, which is outside 0..15",
    ),
    "logits of another width": (
        one(),
        stream(Emitted(0, 5, torch.zeros(17)), Emitted(0, 6), Finished(0, LENGTH, (5, 6))),
        "request #0 gets logits of shape [17], not [16]",
    ),
    "other token": (
        one(),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 7))),
        "request #0 streamed [5, 6] but ends with [5, 7]",
    ),
    "doubled token": (
        one(),
        stream(Emitted(0, 5), Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6))),
        "request #0 gets token 3 of 2",
    ),
    "late token": (
        one(),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6)), Emitted(0, 7)),
        "request #0 hears more after its end",
    ),
    "two ends": (
        one(),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6)), Finished(0, LENGTH, (5, 6))),
        "request #0 hears more after its end",
    ),
    "refused after its end": (
        one(),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6)), Refused(0, "late")),
        "request #0 hears more after its end",
    ),
    "token after the stop token": (
        one(max_new_tokens=3, stop=(5,)),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, STOP, (5, 6))),
        "request #0 goes on after its stop token 5",
    ),
    "token after the stop sequence": (
        one(max_new_tokens=3, stop_sequences=((5, 6),)),
        stream(Emitted(0, 5), Emitted(0, 6), Emitted(0, 7), Finished(0, LENGTH, (5, 6, 7))),
        "request #0 goes on after its stop sequence, which ends with 6",
    ),
    "stop before the minimum": (
        one(stop=(5,), sampling=Sampling(min_new_tokens=1)),
        stream(Emitted(0, 5), Finished(0, STOP, (5,))),
        "request #0 ends with reason 'stop' after 1 of 2 tokens",
    ),
    "stop without the whole sequence": (
        one(stop_sequences=((7, 5),)),
        stream(Emitted(0, 5), Finished(0, STOP, (5,))),
        "request #0 ends with reason 'stop' after 1 of 2 tokens",
    ),
    "length on the end of a stop sequence": (
        one(stop_sequences=((5, 6),)),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6))),
        "request #0 ends with reason 'length' after 2 of 2 tokens",
    ),
    "never ends": (one(), stream(Emitted(0, 5), Emitted(0, 6)), "request #0 never ends"),
    "token after the cancel": (
        one(Step(), Cancel(0)),
        [*stream(Emitted(0, 5)), Asked(2), Stepped(1), Emitted(0, 6), Finished(0, CANCELLED, (5, 6))],
        "request #0 gets a token after it was cancelled",
    ),
    "answered before it asked": (
        Schedule(ops=(Step(), *one().ops)),
        [Asked(0), Stepped(0), Emitted(0, 5), Asked(1), Emitted(0, 6), Finished(0, LENGTH, (5, 6))],
        "request #0 was answered before it asked",
    ),
    "stop without a stop token": (
        one(stop=(7,)),
        stream(Emitted(0, 5), Finished(0, STOP, (5,))),
        "request #0 ends with reason 'stop' after 1 of 2 tokens",
    ),
    "length on a stop token": (
        one(stop=(6,)),
        stream(Emitted(0, 5), Emitted(0, 6), Finished(0, LENGTH, (5, 6))),
        "request #0 ends with reason 'length' after 2 of 2 tokens",
    ),
    "length too early": (
        one(),
        stream(Emitted(0, 5), Finished(0, LENGTH, (5,))),
        "request #0 ends with reason 'length' after 1 of 2 tokens",
    ),
    "context with room left": (
        one(),
        stream(Emitted(0, 5), Finished(0, CONTEXT, (5,))),
        "request #0 ends with reason 'context' after 1 of 2 tokens",
    ),
    "cancelled by nobody": (
        one(),
        stream(Emitted(0, 5), Finished(0, CANCELLED, (5,))),
        "request #0 ends with reason 'cancelled' after 1 of 2 tokens",
    ),
    "deadline without one": (
        one(),
        stream(Emitted(0, 5), Finished(0, DEADLINE, (5,)), start=8),
        "request #0 ends with reason 'deadline' after 1 of 2 tokens",
    ),
    "deadline too early": (
        one(deadline_s=3),
        stream(Emitted(0, 5), Finished(0, DEADLINE, (5,)), start=1),
        "request #0 ends with reason 'deadline' after 1 of 2 tokens",
    ),
    "deadline a second too early for one that came later": (
        Schedule(ops=(Step(), *one(deadline_s=2).ops)),
        [Asked(0), Stepped(0), Asked(1), Stepped(1), Emitted(0, 5), Stepped(2), Finished(0, DEADLINE, (5,))],
        "request #0 ends with reason 'deadline' after 1 of 2 tokens",
    ),
    "forced token not honoured": (
        one(forced=(5,)),
        stream(Emitted(0, 9), Emitted(0, 6), Finished(0, LENGTH, (9, 6))),
        "request #0 gets 9 where 5 was forced",
    ),
}


@pytest.mark.parametrize(("schedule", "events"), HONEST.values(), ids=HONEST)
def test_an_honest_stream_has_no_complaint(schedule: Schedule, events: list[Event]) -> None:
    assert sentences(bookkeeping, schedule, *events, control=SAMPLING) == []


@pytest.mark.parametrize(("schedule", "events", "complaint"), AMISS.values(), ids=AMISS)
def test_what_is_amiss_in_a_stream_is_said(schedule: Schedule, events: list[Event], complaint: str) -> None:
    assert sentences(bookkeeping, schedule, *events, control=SAMPLING) == [complaint]


def test_a_target_that_does_not_honour_sampling_knows_of_stop_tokens_only() -> None:
    schedule, events, _ = AMISS["length on the end of a stop sequence"]
    assert sentences(bookkeeping, schedule, *events, control=FORCED) == []
    schedule, events, _ = AMISS["stop before the minimum"]
    assert sentences(bookkeeping, schedule, *events, control=FORCED) == []


def test_a_target_that_does_not_force_tokens_need_not_honour_them() -> None:
    schedule, events, _ = AMISS["forced token not honoured"]
    assert sentences(bookkeeping, schedule, *events, control=Control(forced=False)) == []


def test_each_request_is_complained_of_once_and_for_what_came_first() -> None:
    events: list[Event] = [
        Asked(0),
        Asked(1),
        Stepped(0),
        Admitted(0, 0),
        Emitted(0, 5),
        Emitted(1, 6),
        Finished(0, STOP, (5, 6)),
        Freed(0, 0),
        Emitted(0, 7),
        Emitted(1, 6),
        Emitted(1, 6),
    ]
    assert sentences(bookkeeping, asked((1,), (2,)), *events) == [
        "request #0 streamed [5] but ends with [5, 6]",
        "request #1 gets token 3 of 2",
    ]
