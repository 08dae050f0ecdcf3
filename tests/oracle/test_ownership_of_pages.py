"""Ownership of pages, each in one state and counted right, and of memory, which is as much whenever nobody is left."""

from __future__ import annotations

import msgspec
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
    Pages,
    Reason,
    Shelved,
)
from tests.oracle.handmade import asked, sentences
from tests.oracle.test_ownership import IN_PIECES, LEFT, LONG, held


def in_pages(first: tuple[int, ...] = (0, 1), second: tuple[int, ...] = (2,), **changes: object) -> Audited:
    """#0 stands in the first pages, #1 in the second; of six pages, one is cached."""
    told: dict[str, object] = {"free": (3, 5), "cached": (4,), "references": ((0, 1), (1, 1), (2, 1)), **changes}
    pages = Pages(size=2, total=6, **told)  # type: ignore[arg-type]
    holdings = (Holding(0, (0,), 4, 4, (), first), Holding(1, (1,), 1, 1, (), second))
    return Audited(Audit(held=holdings, free=(), queued=(), slots=2, pages=pages))


PAGES_HONEST = {
    "each its own": in_pages(),
    "one that both refer to": in_pages(second=(0,), references=((0, 2), (1, 1)), free=(2, 3, 5)),
    "room for what is to come": in_pages(first=(0, 1, 3), references=((0, 1), (1, 1), (2, 1), (3, 1)), free=(5,)),
}
PAGES_AMISS = {
    "free and cached": (
        in_pages(free=(3, 5, 4)),
        "page 4 is in 2 of the states free, cached and referred to, or in one twice",
    ),
    "free twice": (
        in_pages(free=(3, 5, 5)),
        "page 5 is in 2 of the states free, cached and referred to, or in one twice",
    ),
    "free and referred to": (
        in_pages(free=(3, 5, 2)),
        "page 2 is in 2 of the states free, cached and referred to, or in one twice",
    ),
    "lost": (in_pages(free=(3,)), "1 pages are free, 1 cached and 3 referred to, of 6"),
    "one that there is not": (in_pages(free=(3, 6)), "2 pages are free, 1 cached and 3 referred to, of 6"),
    "too few references": (
        in_pages(second=(0,), free=(2, 3, 5), references=((0, 1), (1, 1))),
        "page 0 is in 2 tables and counts 1 references",
    ),
    "too many references": (
        in_pages(references=((0, 1), (1, 2), (2, 1))),
        "page 1 is in 1 tables and counts 2 references",
    ),
    "referred to by nobody": (
        in_pages(free=(5,), references=((0, 1), (1, 1), (2, 1), (3, 1))),
        "page 3 is in 0 tables and counts 1 references",
    ),
    "free, and in a table": (
        in_pages(second=(2, 3)),
        "page 3 is in 1 tables and counts 0 references",
    ),
    "too few pages": (
        in_pages(first=(0,), free=(1, 3, 5), references=((0, 1), (2, 1))),
        "slot 0 of request #0 has 1 pages of 2 for 4 cells",
    ),
    "more pages than it can ever need": (
        in_pages(second=(2, 3, 5), free=(), references=((0, 1), (1, 1), (2, 1), (3, 1), (5, 1))),
        "slot 1 of request #1 has 3 pages of 2 for 1 cells",
    ),
}


@pytest.mark.parametrize("audited", PAGES_HONEST.values(), ids=PAGES_HONEST)
def test_pages_that_add_up_have_no_complaint(audited: Audited) -> None:
    assert sentences(ownership, LONG, *IN_PIECES, audited) == []


@pytest.mark.parametrize(("audited", "complaint"), PAGES_AMISS.values(), ids=PAGES_AMISS)
def test_pages_that_do_not_add_up_are_said(audited: Audited, complaint: str) -> None:
    assert sentences(ownership, LONG, *IN_PIECES, audited) == [complaint]


def test_pages_of_what_is_kept_for_a_forward_in_flight_count_as_well() -> None:
    kept = Holding(0, (0,), 4, 4, (), (0, 1))
    pages = Pages(size=2, total=3, free=(), cached=(), references=((0, 1), (1, 1), (2, 1)))
    audit = Audit(held=(Holding(1, (1,), 1, 1, (), (2,)),), free=(), queued=(), slots=2, retiring=(kept,), pages=pages)
    assert sentences(ownership, LONG, *LEFT, Audited(audit)) == []
    less = msgspec.structs.replace(audit, retiring=(msgspec.structs.replace(kept, pages=(0,)),))
    assert sentences(ownership, LONG, *LEFT, Audited(less)) == ["page 1 is in 0 tables and counts 1 references"]


# Memory over time

ENDS: tuple[Event, ...] = (Asked(0), Admitted(0, 0), Emitted(0, 7), Finished(0, Reason.LENGTH, (7,)), Freed(0, 0))
ENDS_TOO: tuple[Event, ...] = (Asked(1), Admitted(1, 0), Emitted(1, 7), Finished(1, Reason.LENGTH, (7,)), Freed(1, 0))


def idle(allocated: int | None, queued: tuple[int, ...] = ()) -> Audited:
    return Audited(Audit(held=(), free=(0,), queued=queued, slots=1, allocated=allocated))


def busy(allocated: int) -> Audited:
    return Audited(Audit(held=(held(0, 1, cells=1),), free=(), queued=(), slots=1, allocated=allocated))


@pytest.mark.parametrize(
    "accounts",
    [
        (idle(64), busy(999), idle(64)),
        (idle(64), busy(64), idle(8)),
        (idle(None), busy(1), idle(9)),
        (idle(0), busy(9), idle(None)),
    ],
    ids=["the same", "less", "not told at first", "not told later"],
)
def test_memory_that_is_as_much_as_before_whenever_nobody_is_left_has_no_complaint(accounts: tuple[Audited, ...]) -> None:
    first, running, last = accounts
    events = (*ENDS, first, *ENDS_TOO[:3], running, *ENDS_TOO[3:], last)
    assert sentences(ownership, asked((1,), (2,), new=1), *events) == []


def test_memory_that_grows_from_one_idle_moment_to_the_next_is_said() -> None:
    events = (*ENDS, idle(64), *ENDS_TOO[:3], busy(128), *ENDS_TOO[3:], idle(65))
    complaint = "65 bytes are allocated where nobody is left, and there were 64 before"
    assert sentences(ownership, asked((1,), (2,), new=1), *events) == [complaint]


def test_a_moment_when_somebody_waits_is_not_idle() -> None:
    waits = (Asked(0), idle(0, queued=(0,)), *ENDS[1:], idle(64), *ENDS_TOO, idle(64))
    assert sentences(ownership, asked((1,), (2,), new=1), *waits) == []


# What is shared and only read


def shelved(*kept: Shelved) -> Audited:
    holdings = (held(0, 0, cells=4), held(1, 1, cells=1))
    return Audited(Audit(held=holdings, free=(), queued=(), slots=2, shelved=kept))


KEPT = Shelved("one", (0, 1), "a")


@pytest.mark.parametrize(
    ("accounts", "complaints"),
    [
        ((KEPT, KEPT), []),
        ((Shelved("one", (0,), ""), KEPT), []),
        ((KEPT, Shelved("other", (0, 1), "b")), []),
        ((KEPT, Shelved("one", (0, 1), "b")), ["shared one was a, and is b: somebody wrote to it"]),
        ((Shelved("one", (0, 2), "a"),), ["shared one is used by slot 2, 1 times more often than that is held"]),
        ((Shelved("one", (1, 1, 1), "a"),), ["shared one is used by slot 1, 2 times more often than that is held"]),
    ],
    ids=["the same", "encoded since", "another one", "written to", "used by nobody", "used twice"],
)
def test_what_is_shared_keeps_its_bits_and_is_used_by_those_who_are_there(
    accounts: tuple[Shelved, ...], complaints: list[str]
) -> None:
    assert sentences(ownership, LONG, *IN_PIECES, *map(shelved, accounts)) == complaints
