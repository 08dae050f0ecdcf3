"""The prefix index: what it finds is the longest prefix that is known, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.decoder.prefix import Entry, PrefixIndex

TOKENS = st.lists(st.integers(0, 2), max_size=9)
SALTS = st.sampled_from([None, 0, 1])
Known = dict[int, tuple[int | None, tuple[int, ...]]]
"""By page: the salt, and all tokens up to the end of it."""


class Colliding(PrefixIndex):
    """Every key but those before a first page is the same."""

    def key(self, parent: int, tokens: tuple[int, ...]) -> int:
        return 0


class CollidingRoots(Colliding):
    """So are those."""

    def root(self, salt: int | None) -> int:
        return 0


def publish(index: PrefixIndex, known: Known, tokens: Sequence[int], salt: int | None) -> None:
    """Makes a sequence known, a new page for every piece, the last one as far as it goes; notes what is so."""
    before: Entry | None = None
    for start in range(0, len(tokens), index.page_size):
        page = max(known, default=-1) + 1
        piece = tuple(tokens[start : start + index.page_size])
        before = index.add(page, before, salt, piece)
        if page in index:
            known[page] = (salt, tuple(tokens[: start + len(piece)]))


def brute_force(size: int, known: Known, tokens: Sequence[int], salt: int | None) -> int:
    """How many tokens there are pages for: whole ones, one after the other, then the one that goes on for longest."""
    ours = [mine for whose, mine in known.values() if whose == salt]
    at = 0
    while at + size <= len(tokens) and tuple(tokens[: at + size]) in ours:
        at += size
    behind = [mine for mine in ours if at < len(mine) <= at + size and mine[:at] == tuple(tokens[:at])]
    return max((common(mine, tokens) for mine in behind), default=at)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common from the first on."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def assert_holds(index: PrefixIndex, known: Known, tokens: Sequence[int], salt: int | None) -> int:
    """Raises where a page that is found holds something else; returns how many cells are found."""
    at = 0
    for page, cells in index.match(tokens, salt):
        whose, mine = known[page]
        assert whose == salt
        assert mine[: at + cells] == tuple(tokens[: at + cells])
        at += cells
    return at


@pytest.mark.slow
@given(
    st.integers(1, 3),
    st.lists(st.tuples(TOKENS, SALTS), max_size=6),
    st.lists(st.integers(0, 20), max_size=4),
    st.lists(st.tuples(TOKENS, SALTS), max_size=6),
)
def test_a_match_is_the_longest_prefix_that_is_known(
    size: int,
    published: list[tuple[list[int], int | None]],
    forgotten: list[int],
    wanted: list[tuple[list[int], int | None]],
) -> None:
    index, known = PrefixIndex(size), Known()
    for tokens, salt in published:
        publish(index, known, tokens, salt)
    for page in forgotten:
        index.forget(page)
        known.pop(page, None)
    for tokens, salt in [*wanted, *published]:
        assert assert_holds(index, known, tokens, salt) == brute_force(size, known, tokens, salt)


@pytest.mark.slow
@given(
    st.sampled_from([Colliding, CollidingRoots]),
    st.integers(1, 3),
    st.lists(st.tuples(TOKENS, SALTS), max_size=6),
    st.lists(st.tuples(TOKENS, SALTS), max_size=6),
)
def test_keys_that_collide_never_give_other_tokens(
    kind: type[PrefixIndex],
    size: int,
    published: list[tuple[list[int], int | None]],
    wanted: list[tuple[list[int], int | None]],
) -> None:
    index, known = kind(size), Known()
    for tokens, salt in published:
        publish(index, known, tokens, salt)
    for tokens, salt in [*wanted, *published]:
        assert_holds(index, known, tokens, salt)


def test_a_page_that_looks_alike_behind_another_page_of_the_same_key_is_not_found() -> None:
    """The cells of its tokens depend on those before them. (A collision may cost a hit, as that of the last line.)"""
    index, known = Colliding(1), Known()
    publish(index, known, [1, 5], None)
    publish(index, known, [2], None)
    assert index.match([2, 5], None) == [(2, 1)]
    assert index.match([1, 5], None) == [(0, 1)]


def test_salts_are_kept_apart() -> None:
    index, known = PrefixIndex(2), Known()
    publish(index, known, [1, 2, 3], None)
    publish(index, known, [1, 2, 3], 0)
    assert [[page for page, _ in index.match([1, 2, 3], salt)] for salt in (None, 0, 1)] == [[0, 1], [2, 3], []]


def test_what_is_known_already_is_not_known_twice() -> None:
    index, known = PrefixIndex(2), Known()
    publish(index, known, [1, 2, 3], None)
    first = index.match([1, 2, 3], None)
    assert index.add(9, None, None, (1, 2)) is index.entries[0]
    assert 9 not in index
    assert index.match([1, 2, 3], None) == first


def test_what_is_forgotten_is_not_found_and_what_stood_behind_it_is_when_it_is_known_again() -> None:
    index, known = PrefixIndex(1), Known()
    publish(index, known, [1, 2], None)
    index.forget(0)
    index.forget(0)
    assert index.match([1, 2], None) == []
    index.add(7, None, None, (1,))
    assert index.match([1, 2], None) == [(7, 1), (1, 1)]


def test_nothing_is_left_of_what_is_forgotten() -> None:
    index, known = PrefixIndex(2), Known()
    publish(index, known, [1, 2, 3, 4, 5], 3)
    for page in range(3):
        index.forget(page)
    assert (index.entries, index.whole, index.behind) == ({}, {}, {})
