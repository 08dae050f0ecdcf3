"""The page store: what is shared is shared as it is, what is written is one's own, and what can never fit is refused."""

from __future__ import annotations

import pytest
import torch

from targets.decoder import Decoder, DecoderFactory, PageStore
from targets.protocol import Event, Reason, Refused, Request, Setting
from tests.targets.decoder.driving import alone, cached, close, drain, logits, request, submit, tokens

PROMPT = tuple(range(20, 31))
"""Eleven tokens: two pages of four, and three cells of a third."""


def pages(paged: DecoderFactory, **settings: Setting) -> Decoder:
    """A fresh decoder with pages of four cells."""
    return paged.open({"page_size": 4, **settings})


def store_of(decoder: Decoder) -> PageStore:
    assert isinstance(decoder.store, PageStore)
    return decoder.store


def cells_of(decoder: Decoder, submission: int) -> list[torch.Tensor]:
    """K and V of everything a running request has, a copy."""
    seen = decoder.inspect().cells[submission]
    return [each.clone() for each in (*seen.keys, *seen.values)]


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Whether the cells that both have are the same."""
    count = min(a[0].shape[1], b[0].shape[1])
    return all(torch.equal(x[:, :count], y[:, :count]) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("page_size", [1, 4, 11, 16])
def test_a_hit_gives_what_a_miss_gives_and_leaves_at_least_one_token_to_run(paged: DecoderFactory, page_size: int) -> None:
    decoder = pages(paged, page_size=page_size)
    asked = [request(*PROMPT), request(*PROMPT), request(*PROMPT, 5, 6), request(*PROMPT[:6], 9)]
    for who, each in enumerate(asked):
        events = submit(decoder, each, start=who) + drain(decoder)
        assert close(logits(events, who), alone(paged, each))
        expected = {0: 0, 1: 10, 2: 11, 3: 6}[who]
        assert cached(events) == {who: expected}
    assert decoder.audit().counts["hits"] == 3


def test_an_answer_is_found_by_a_prompt_that_goes_on_from_it(paged: DecoderFactory) -> None:
    decoder = pages(paged)
    events = submit(decoder, request(*PROMPT, new=6)) + drain(decoder)
    turn = request(*PROMPT, *tokens(events)[0], 7, new=3)
    events = submit(decoder, turn, start=1) + drain(decoder)
    assert cached(events) == {1: len(PROMPT) + 5}, "the last token of an answer is never fed"
    assert close(logits(events, 1), alone(paged, turn))


def test_a_full_hit_leaves_one_token_to_run(paged: DecoderFactory) -> None:
    decoder = pages(paged)
    submit(decoder, request(*PROMPT[:8]))
    drain(decoder)
    events = submit(decoder, request(*PROMPT[:8]), start=1) + decoder.step()
    assert cached(events) == {1: 7}
    assert [tuple(feed.tokens) for feeds, _ in decoder.runner.forwards for feed in feeds] == [(PROMPT[7],)]


def test_pages_are_not_shared_across_salts_nor_without_the_cache(paged: DecoderFactory) -> None:
    for settings, first, second in (({}, 1, 2), ({}, None, 0), ({"prefix_cache": False}, 1, 1)):
        decoder = pages(paged, **settings)
        submit(decoder, request(*PROMPT, salt=first))
        drain(decoder)
        assert cached(submit(decoder, request(*PROMPT, salt=second), start=1) + drain(decoder)) == {1: 0}
    decoder = pages(paged)
    submit(decoder, request(*PROMPT, salt=1))
    drain(decoder)
    assert cached(submit(decoder, request(*PROMPT, salt=1), start=1) + drain(decoder)) == {1: 10}


def test_who_writes_into_a_shared_page_copies_it_and_the_other_s_cells_keep_every_bit(paged: DecoderFactory) -> None:
    decoder = pages(paged)
    submit(decoder, request(*PROMPT, new=12))
    decoder.step()
    before = cells_of(decoder, 0)
    submit(decoder, request(*PROMPT, new=12, sample_of=0, forced=(3, 1, 4)), start=1)
    decoder.step()
    table, forked = (store_of(decoder).tables[slot] for slot in (0, 1))
    assert table[:2] == forked[:2]
    assert table[2] != forked[2], "both write into the third"
    decoder.step()
    assert same_bits(cells_of(decoder, 0), before)
    counts = decoder.audit().counts
    assert (counts["forked"], counts["copied_on_write"]) == (1, 1), "the last of two writes into what is its own by then"


def test_without_the_copy_the_other_s_cells_would_change(paged: DecoderFactory) -> None:
    class Careless(PageStore):
        def copies(self, slot: int, first: int) -> bool:
            return False

    decoder = pages(DecoderFactory(paged.model, paged.parts.with_(store=Careless), "pages"))
    submit(decoder, request(*PROMPT[:10], 5, new=12))
    decoder.step()
    submit(decoder, request(*PROMPT[:10], 6, new=12), start=1)
    decoder.step()
    before = cells_of(decoder, 0)
    store_of(decoder).fork(2, 0, 10)
    decoder.live[1].fed = decoder.store.lengths[1] = 10
    store_of(decoder).put_table(1, list(store_of(decoder).tables[2]))
    decoder.step()
    assert not same_bits(cells_of(decoder, 0), before)


@pytest.mark.parametrize("order", ["lifo", "fifo"])
@pytest.mark.parametrize("references", ["each", "grouped"])
def test_an_evicted_page_is_never_found(paged: DecoderFactory, order: str, references: str) -> None:
    decoder = pages(paged, pool_tokens=24, page_order=order, references=references)
    prompts = [tuple(range(start, start + 11)) for start in (20, 40, 60, 20)]
    for who, prompt in enumerate(prompts):
        asked = request(*prompt, new=2)
        events = submit(decoder, asked, start=who) + drain(decoder)
        assert cached(events) == {who: 0}, "six pages hold no more than two of them"
        assert close(logits(events, who), alone(paged, asked))
    assert decoder.audit().counts["evicted"] > 0
    events = submit(decoder, request(*prompts[2], new=2), start=4) + drain(decoder)
    assert cached(events) == {4: 10}, "and the last but one is still there"


def test_what_can_never_fit_is_refused_with_a_reason_and_what_just_fits_is_served(paged: DecoderFactory) -> None:
    decoder = pages(paged, pool_tokens=16)
    assert submit(decoder, request(*PROMPT, new=7)) == [Refused(0, "more cells than the pool has")]
    events = submit(decoder, request(*PROMPT, new=6), start=1) + drain(decoder)
    assert len(tokens(events)[1]) == 6


@pytest.mark.parametrize("new", [1, 5, 6])
def test_a_request_alone_in_the_smallest_pool_is_never_preempted(paged: DecoderFactory, new: int) -> None:
    decoder = pages(paged, pool_tokens=16)
    asked = request(*PROMPT, new=new)
    for who in range(3):
        events = submit(decoder, asked, start=who) + drain(decoder)
        assert close(logits(events, who), alone(paged, asked))
    assert decoder.audit().counts["preempted"] == 0


@pytest.mark.parametrize("reuse", ["length", "zero-on-free", "zero-on-allocate"])
def test_what_becomes_of_pages_that_change_hands_changes_no_bit(paged: DecoderFactory, reuse: str) -> None:
    decoder = pages(paged, reuse=reuse, pool_tokens=48, prefix_cache=False)
    for who in range(3):
        asked = request(*(3 * who + token for token in PROMPT), new=5)
        events = submit(decoder, asked, start=who) + drain(decoder)
        fresh = pages(paged, pool_tokens=48)
        assert torch.equal(logits(events, who), logits(submit(fresh, asked) + drain(fresh), 0))
    left = [bool((slab[:, page] == 0).all()) for slab in store_of(decoder).keys for page in store_of(decoder).pool.free]
    assert any(left) == (reuse == "zero-on-free")
    written = {"length": False, "zero-on-free": True, "zero-on-allocate": False}[reuse]
    assert bool((store_of(decoder).keys[0][:, store_of(decoder).pool.free[-1]] == 0).all()) == written


def answers(paged: DecoderFactory, *asked: Request, **settings: Setting) -> tuple[list[Event], Decoder]:
    """What requests that come together are given."""
    decoder = pages(paged, **settings)
    return submit(decoder, *asked) + drain(decoder), decoder


@pytest.mark.parametrize(
    "settings", [{}, {"pipelined": True}, {"step_tokens_max": 4}, {"pipelined": True, "pad_batch": True}]
)
def test_answers_to_one_prompt_share_its_pages_and_are_those_of_requests_apart(
    paged: DecoderFactory, settings: dict[str, Setting]
) -> None:
    first = request(*PROMPT, new=6)
    more = [request(*PROMPT, new=6, sample_of=0, forced=(token,)) for token in (5, 6)]
    events, decoder = answers(paged, first, *more, **settings)
    assert cached(events) == {0: 0, 1: 10, 2: 10}, "they wait for the prompt to be run, though all come together"
    assert decoder.audit().counts["forked"] == 2
    for who, asked in enumerate((first, *more)):
        assert close(logits(events, who), alone(paged, request(*asked.prompt, new=6, forced=asked.forced)))


def test_answers_to_one_prompt_take_no_room_for_it_twice(paged: DecoderFactory) -> None:
    first, more = request(*PROMPT, 31, new=6), request(*PROMPT, 31, new=6, sample_of=0)
    decoder = pages(paged)
    submit(decoder, first, more)
    decoder.step()
    decoder.step()
    account = decoder.audit().pages
    assert account is not None
    assert sorted(count for _, count in account.references)[-2:] == [2, 2]


@pytest.mark.parametrize(
    "other",
    [
        request(*PROMPT, 5, sample_of=0),
        request(*PROMPT, salt=7, sample_of=0),
        request(*PROMPT[:5], sample_of=0),
    ],
    ids=["a longer prompt", "another salt", "a shorter prompt"],
)
def test_one_more_answer_to_something_else_means_nothing(paged: DecoderFactory, other: Request) -> None:
    events, decoder = answers(paged, request(*PROMPT), other)
    assert decoder.audit().counts["forked"] == 0
    assert close(logits(events, 1), alone(paged, request(*other.prompt)))


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_one_more_answer_is_given_when_the_first_is_cancelled(paged: DecoderFactory, steps: int) -> None:
    decoder = pages(paged, step_tokens_max=8)
    events = submit(decoder, request(*PROMPT), request(*PROMPT, sample_of=0))
    for _ in range(steps):
        events += decoder.step()
    events += decoder.cancel(0, Reason.CANCELLED) + drain(decoder)
    assert close(logits(events, 1), alone(paged, request(*PROMPT)))
