"""The pool: every page is in one state, and which page is next follows from what was given back, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.decoder.pool import Pool
from targets.decoder.prefix import PrefixIndex

PAGES = 5
MOVES = st.lists(
    st.tuples(st.sampled_from(["take", "publish", "retain", "release", "settle"]), st.integers(0, 11)), max_size=40
)


def pool_of(pages: int = PAGES, order: str = "lifo", grouped: bool = False) -> tuple[Pool, list[int]]:
    """A pool whose pages hold one token each, and the pages that became free."""
    emptied: list[int] = []
    return Pool(pages, order, grouped, PrefixIndex(1), emptied.append), emptied


def publish(pool: Pool, page: int, token: int | None = None) -> None:
    """What a page holds may be found from now on."""
    pool.index.add(page, None, None, (page if token is None else token,))


def taken(pool: Pool) -> int:
    """The next page."""
    page = pool.take()
    assert page is not None
    return page


@pytest.mark.slow
@given(MOVES, st.sampled_from(["lifo", "fifo"]), st.booleans())
def test_a_page_is_in_one_state_and_counts_as_many_references_as_there_are(
    moves: list[tuple[str, int]], order: str, grouped: bool
) -> None:
    pool, _ = pool_of(order=order, grouped=grouped)
    mine: list[int] = []  # a page stands here as often as it is referred to
    back: list[int] = []  # given back, and not yet so
    for move, number in moves:
        if move == "take":
            room = PAGES - len({*mine, *back})
            page = pool.take()
            if page is None:
                assert not PAGES - len(set(mine)), "a pool with a page that nobody refers to gives one"
                back.clear()  # it settles before it gives up
                continue
            if not room:
                back.clear()
            assert page not in mine
            assert page not in pool.index, "who takes a page finds nothing in it that others may find as well"
            mine.append(page)
        elif move == "publish" and mine:
            publish(pool, mine[number % len(mine)])
        elif move == "retain":
            known = sorted({*mine, *pool.cached})
            if known:
                page = known[number % len(known)]
                pool.retain(page)
                mine.append(page)
        elif move == "release" and mine:
            page = mine.pop(number % len(mine))
            pool.release([page])
            back += [page] * grouped
        elif move == "settle":
            pool.settle()
            back.clear()
        held = {page for page, count in enumerate(pool.references) if count}
        assert sorted([*held, *pool.free, *pool.cached]) == list(range(PAGES))
        assert pool.references == [mine.count(page) + back.count(page) for page in range(PAGES)]
        assert all(page in pool.index for page in pool.cached)
        assert not any(page in pool.index for page in pool.free)
        assert pool.available == PAGES - len(held)


@pytest.mark.parametrize(("order", "expected"), [("lifo", [0, 1, 1, 0]), ("fifo", [0, 1, 2, 3])])
def test_the_next_page_is_the_last_that_became_free_or_the_first(order: str, expected: list[int]) -> None:
    pool, _ = pool_of(4, order)
    first = [taken(pool), taken(pool)]
    pool.release(first)
    assert [*first, taken(pool), taken(pool)] == expected


def test_the_page_that_has_been_cached_for_longest_is_evicted_first_and_is_not_found_any_more() -> None:
    pool, emptied = pool_of(3)
    pages = [taken(pool) for _ in range(3)]
    for page in pages:
        publish(pool, page)
    pool.release([pages[1], pages[0], pages[2]])
    pool.retain(pages[1])
    pool.release([pages[1]])  # used again: now the one that was used last
    assert [taken(pool) for _ in range(3)] == [pages[0], pages[2], pages[1]]
    assert emptied == [pages[0], pages[2], pages[1]]
    assert pool.counts["evicted"] == 3
    assert [pool.index.match([page], None) for page in pages] == [[], [], []]
    assert pool.take() is None


def test_a_free_page_is_taken_before_any_that_is_cached() -> None:
    pool, _ = pool_of(2)
    cached, free = taken(pool), taken(pool)
    publish(pool, cached)
    pool.release([cached, free])
    assert taken(pool) == free
    assert pool.index.match([cached], None) == [(cached, 1)]
    assert taken(pool) == cached


def test_grouped_references_are_given_back_when_the_step_is_over_or_when_there_is_nothing_else() -> None:
    pool, emptied = pool_of(2, grouped=True)
    pages = [taken(pool), taken(pool)]
    pool.release([pages[0]])
    assert (pool.available, emptied) == (0, [])
    pool.settle()
    assert (pool.available, emptied) == (1, [pages[0]])
    assert taken(pool) == pages[0]
    pool.release(pages)
    assert pool.available == 0
    assert taken(pool) in pages


def test_a_page_that_two_refer_to_stays_until_both_have_given_it_back() -> None:
    pool, emptied = pool_of(1)
    page = taken(pool)
    pool.retain(page)
    pool.release([page])
    assert (pool.take(), emptied) == (None, [])
    pool.release([page])
    assert (emptied, pool.take()) == ([page], page)
