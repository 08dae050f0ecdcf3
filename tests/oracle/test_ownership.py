"""Ownership: one owner a slot, nothing held by the dead, nothing lost, every length the owner's own."""

from __future__ import annotations

from collections import deque

import pytest

from oracle.checks.ownership import ownership
from targets.protocol import (
    Admitted,
    Asked,
    Audit,
    Audited,
    Emitted,
    Event,
    Finished,
    Freed,
    Holding,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Stepped,
)
from tests.oracle.handmade import asked, sentences

Storage = tuple[tuple[int, int, int], ...]

SCHEDULE = asked((1, 2, 3), (4,), (5,), new=3)
RUNNING: tuple[Event, ...] = (
    Asked(0),
    Asked(1),
    Asked(2),
    Stepped(0),
    Admitted(0, 1),
    Admitted(1, 0),
    Emitted(0, 7),
    Emitted(1, 7),
    Stepped(1),
    Emitted(0, 7),
    Emitted(1, 7),
)
"""Of three requests, #0 runs in slot 1 and #1 in slot 0, two tokens each; #2 waits. There are three slots."""
ENDED = (*RUNNING, Finished(1, Reason.LENGTH, (7, 7)), Freed(1, 0))


def held(slot: int, *owners: int, cells: int, visible: int | None = None, storage: Storage = ()) -> Holding:
    return Holding(slot, owners, cells, cells if visible is None else visible, storage)


def account(*holdings: Holding, free: tuple[int, ...] = (2,), queued: tuple[int, ...] = (2,), slots: int = 3) -> Audited:
    return Audited(Audit(held=holdings, free=free, queued=queued, slots=slots))


FIRST, SECOND = held(0, 1, cells=2), held(1, 0, cells=4)

HONEST = {
    "two run and one waits": (RUNNING, account(FIRST, SECOND)),
    "one has ended": (ENDED, account(SECOND, free=(2, 0))),
    "admitted, not run": ((*RUNNING[:6],), account(held(0, 1, cells=0), held(1, 0, cells=0))),
    "the last was refused": (
        (*RUNNING, Refused(2, "queue full")),
        account(FIRST, SECOND, queued=()),
    ),
    "cancelled while it waited": (
        (*RUNNING, Finished(2, Reason.CANCELLED, ())),
        account(FIRST, SECOND, queued=()),
    ),
}

AMISS = {
    "free twice": (RUNNING, account(FIRST, SECOND, free=(2, 2)), "slot 2 is free twice"),
    "held and free": (RUNNING, account(FIRST, SECOND, free=(2, 0)), "slot 0 is held and free"),
    "lost slot": (RUNNING, account(FIRST, SECOND, free=()), "2 slots are held and 0 free, of 3"),
    "two owners": (RUNNING, account(held(0, 0, 1, cells=2), SECOND), "slot 0 has 2 owners: [0, 1]"),
    "no owner": (RUNNING, account(held(0, cells=2), SECOND), "slot 0 has 0 owners: []"),
    "dead owner": (
        ENDED,
        account(FIRST, SECOND),
        "slot 0 is held by request #1, which is not running",
    ),
    "a waiting request holds a slot": (
        RUNNING,
        account(FIRST, SECOND, held(2, 2, cells=0), free=()),
        "slot 2 is held by request #2, which is not running",
    ),
    "too many cells": (
        RUNNING,
        account(held(0, 1, cells=3), SECOND),
        "slot 0 of request #1 has 3 cells, 3 visible, but 2 of its tokens were run",
    ),
    "too few cells seen": (
        RUNNING,
        account(FIRST, held(1, 0, cells=4, visible=3)),
        "slot 1 of request #0 has 4 cells, 3 visible, but 4 of its tokens were run",
    ),
    "cells before it ran": (
        (*RUNNING[:6],),
        account(held(0, 1, cells=0), held(1, 0, cells=5)),
        "slot 1 of request #0 has 5 cells, 5 visible, but 0 of its tokens were run",
    ),
    "in another slot": (
        RUNNING,
        account(FIRST, held(2, 0, cells=4), free=(1,)),
        "request #0 was given slot 1 but holds 2",
    ),
    "holds none": (RUNNING, account(FIRST, free=(2, 1)), "request #0 was given slot 1 but holds none"),
    "not queued": (RUNNING, account(FIRST, SECOND, queued=()), "requests [] are queued, but [2] are waiting"),
    "queued twice": (RUNNING, account(FIRST, SECOND, queued=(2, 2)), "requests [2, 2] are queued, but [2] are waiting"),
    "queued though it runs": (
        RUNNING,
        account(FIRST, SECOND, queued=(1, 2)),
        "requests [1, 2] are queued, but [2] are waiting",
    ),
}


@pytest.mark.parametrize(("events", "audited"), HONEST.values(), ids=HONEST)
def test_an_account_that_adds_up_has_no_complaint(events: tuple[Event, ...], audited: Audited) -> None:
    assert sentences(ownership, SCHEDULE, *events, audited) == []


@pytest.mark.parametrize(("events", "audited", "complaint"), AMISS.values(), ids=AMISS)
def test_an_account_that_does_not_add_up_is_said(events: tuple[Event, ...], audited: Audited, complaint: str) -> None:
    assert sentences(ownership, SCHEDULE, *events, audited) == [complaint]


def in_memory(first: Storage, second: Storage) -> Audited:
    """#1 lies in the first ranges, #0 in the second."""
    return account(held(0, 1, cells=2, storage=first), held(1, 0, cells=4, storage=second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((0, 0, 64), (1, 0, 64)), ((0, 64, 128), (1, 64, 128))),
        (((0, 64, 128),), ((0, 0, 64), (0, 128, 192))),
        (((0, 0, 64), (0, 32, 96)), ((1, 0, 64),)),
        (((0, 0, 64),), ((1, 0, 64),)),
        (((0, 0, 64),), ((0, 32, 32),)),
        ((), ((0, 0, 64),)),
    ],
)
def test_memory_that_touches_or_is_one_s_own_twice_is_not_shared(first: Storage, second: Storage) -> None:
    assert sentences(ownership, SCHEDULE, *RUNNING, in_memory(first, second)) == []


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (((0, 0, 64),), ((0, 0, 64),), "64 bytes from byte 0 of allocation 0"),
        (((0, 0, 64),), ((0, 63, 128),), "1 bytes from byte 63 of allocation 0"),
        (((1, 0, 64), (2, 0, 1024)), ((1, 64, 128), (2, 512, 520)), "8 bytes from byte 512 of allocation 2"),
        (((0, 0, 1024), (0, 8, 16)), ((0, 100, 108),), "8 bytes from byte 100 of allocation 0"),
    ],
)
def test_two_requests_whose_memory_overlaps_are_named(first: Storage, second: Storage, shared: str) -> None:
    complaint = f"the K and V of requests #0 and #1 overlap: {shared}"
    assert sentences(ownership, SCHEDULE, *RUNNING, in_memory(first, second)) == [complaint]


def test_only_the_first_wrong_account_is_reported() -> None:
    wrong = account(FIRST, SECOND, free=(2, 2))
    assert len(sentences(ownership, SCHEDULE, *RUNNING, wrong, wrong)) == 1


def test_a_target_without_accounts_is_not_complained_of() -> None:
    assert sentences(ownership, SCHEDULE, *RUNNING) == []


def test_the_order_of_the_queue_and_of_the_free_slots_is_the_target_s_own() -> None:
    free = tuple(deque((0, 2)))
    assert sentences(ownership, SCHEDULE, *ENDED, account(SECOND, free=free)) == []
    assert sentences(ownership, SCHEDULE, *ENDED, account(SECOND, free=free[::-1])) == []


# What comes and goes: cells that were there already, pieces of prompts, preemption, forwards in flight

LONG = asked((1, 2, 3, 4, 5, 6), (4,), new=3)
IN_PIECES: tuple[Event, ...] = (
    Asked(0),
    Asked(1),
    Stepped(0),
    Admitted(0, 0, cached=2),
    Admitted(1, 1),
    Prefilled(0, 4),
    Emitted(1, 7),
)
"""#0 found two of its tokens' cells in slot 0, and two more of them were run; #1 has its first token."""
GONE = (*IN_PIECES, Stepped(1), Preempted(0, 0))
BACK = (*GONE, Stepped(2), Admitted(0, 0, cached=3))
LEFT = (*IN_PIECES, Finished(0, Reason.CANCELLED, ()))
"""#0 is cancelled with a forward in flight: slot 0 is not said to be free."""


def two(*holdings: Holding, free: tuple[int, ...] = (), queued: tuple[int, ...] = (), **more: object) -> Audited:
    """An account of a target with two slots."""
    return Audited(Audit(held=holdings, free=free, queued=queued, slots=2, **more))  # type: ignore[arg-type]


SECOND_OF_TWO = held(1, 1, cells=1)

COMES_AND_GOES_HONEST = {
    "found and run": (IN_PIECES, two(held(0, 0, cells=4), SECOND_OF_TWO)),
    "found, not run yet": (IN_PIECES[:5], two(held(0, 0, cells=2), held(1, 1, cells=0))),
    "preempted": (GONE, two(SECOND_OF_TWO, free=(0,), queued=(0,))),
    "back, with cells that were found": (BACK, two(held(0, 0, cells=3), SECOND_OF_TWO)),
    "back, and all its tokens run": ((*BACK, Emitted(0, 7)), two(held(0, 0, cells=6), SECOND_OF_TWO)),
    "cancelled while it was preempted": ((*GONE, Finished(0, Reason.CANCELLED, ())), two(SECOND_OF_TWO, free=(0,))),
    "cancelled in flight": (LEFT, two(SECOND_OF_TWO, retiring=(held(0, 0, cells=4),))),
    "cancelled in flight, in the step after": (
        (*LEFT, Stepped(1)),
        two(SECOND_OF_TWO, retiring=(held(0, 0, cells=6),)),
    ),
    "its forward has landed": ((*LEFT, Stepped(1), Freed(0, 0)), two(SECOND_OF_TWO, free=(0,))),
}

COMES_AND_GOES_AMISS = {
    "cells that were found are not there": (
        IN_PIECES[:5],
        two(held(0, 0, cells=0), held(1, 1, cells=0)),
        "slot 0 of request #0 has 0 cells, 0 visible, but 2 of its tokens were run",
    ),
    "more cells than the pieces": (
        IN_PIECES,
        two(held(0, 0, cells=6), SECOND_OF_TWO),
        "slot 0 of request #0 has 6 cells, 6 visible, but 4 of its tokens were run",
    ),
    "preempted, and holds its slot": (
        GONE,
        two(held(0, 0, cells=4), SECOND_OF_TWO, queued=(0,)),
        "slot 0 is held by request #0, which is not running",
    ),
    "preempted, and forgotten": (
        GONE,
        two(SECOND_OF_TWO, free=(0,)),
        "requests [] are queued, but [0] are waiting",
    ),
    "back, with the cells of before": (
        BACK,
        two(held(0, 0, cells=4), SECOND_OF_TWO),
        "slot 0 of request #0 has 4 cells, 4 visible, but 3 of its tokens were run",
    ),
    "kept for nobody who has ended": (
        IN_PIECES,
        two(SECOND_OF_TWO, retiring=(held(0, 0, cells=4),)),
        "request #0 was given slot 0 but holds none",
    ),
    "kept beside its owner": (
        IN_PIECES,
        two(held(0, 0, cells=4), SECOND_OF_TWO, retiring=(held(0, 0, cells=4),)),
        "slot 0 is kept for a forward in flight, but nobody who had it has ended",
    ),
    "kept for another": (
        LEFT,
        two(SECOND_OF_TWO, retiring=(held(0, 1, cells=4),)),
        "slot 0 is kept for [1], but it was request #0's",
    ),
    "kept and free": (
        LEFT,
        two(SECOND_OF_TWO, free=(0,), retiring=(held(0, 0, cells=4),)),
        "slot 0 is held and free",
    ),
    "kept for longer than a step": (
        (*LEFT, Stepped(1), Stepped(2)),
        two(SECOND_OF_TWO, retiring=(held(0, 0, cells=4),)),
        "slot 0 is kept for a forward in flight 2 steps after its owner's end",
    ),
    "kept though it was said to be free": (
        (*LEFT, Stepped(1), Freed(0, 0)),
        two(SECOND_OF_TWO, retiring=(held(0, 0, cells=4),)),
        "slot 0 is kept for a forward in flight, but nobody who had it has ended",
    ),
    "neither kept nor free": (LEFT, two(SECOND_OF_TWO), "1 slots are held and 0 free, of 2"),
}


@pytest.mark.parametrize(("events", "audited"), COMES_AND_GOES_HONEST.values(), ids=COMES_AND_GOES_HONEST)
def test_what_comes_and_goes_is_followed(events: tuple[Event, ...], audited: Audited) -> None:
    assert sentences(ownership, LONG, *events, audited) == []


@pytest.mark.parametrize(("events", "audited", "complaint"), COMES_AND_GOES_AMISS.values(), ids=COMES_AND_GOES_AMISS)
def test_what_comes_and_goes_and_is_not_so_is_said(events: tuple[Event, ...], audited: Audited, complaint: str) -> None:
    assert sentences(ownership, LONG, *events, audited) == [complaint]
