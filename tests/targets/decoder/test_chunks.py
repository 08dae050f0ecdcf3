"""Chunked prefill: a step feeds no more tokens than its budget, decodes first, and no answer depends on the cuts."""

from __future__ import annotations

import pytest

from targets.decoder import Decoder, DecoderFactory
from targets.protocol import Emitted, Prefilled, Reason, Setting
from tests.targets.decoder.driving import alone, assert_all_given_back, close, drain, logits, request, submit

ASKED = [request(*range(30, 53), new=4), request(4, new=9), request(*range(60, 71), new=5), request(7, 8, new=3)]


def fed(decoder: Decoder) -> list[tuple[int, int]]:
    """(submission, tokens) of every row of the last step, in the order in which they were run."""
    return [(feed.submission, len(feed.tokens)) for feeds, _ in decoder.runner.forwards for feed in feeds]


@pytest.mark.parametrize("budget", [1, 3, 4, 8, 64])
@pytest.mark.parametrize("prefill", ["mixed", "apart", "alone"])
def test_every_answer_is_that_of_the_network_alone(slotted: DecoderFactory, budget: int, prefill: str) -> None:
    decoder = slotted.open({"step_tokens_max": budget, "prefill": prefill})
    events = submit(decoder, *ASKED)
    for _ in range(200):
        events += decoder.step()
        assert sum(count for _, count in fed(decoder)) <= budget
    for who, asked in enumerate(ASKED):
        assert close(logits(events, who), alone(slotted, asked))
    assert (decoder.audit().counts["chunked"] > 0) == (budget < 64)
    assert_all_given_back(decoder)


def test_a_prompt_goes_through_in_pieces_beside_decodes_which_come_first(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"step_tokens_max": 8})
    events = submit(decoder, request(4, new=9)) + decoder.step()
    submit(decoder, request(*range(30, 50), new=2), start=1)
    pieces = []
    for _ in range(3):
        events += decoder.step()
        pieces.append(fed(decoder))
    assert pieces == [[(0, 1), (1, 7)], [(0, 1), (1, 7)], [(0, 1), (1, 6)]]
    told = [event for event in events if isinstance(event, Prefilled)]
    assert told == [Prefilled(1, 7), Prefilled(1, 14)], "the last piece gives a token"
    assert [event.submission for event in events if isinstance(event, Emitted)] == [0, 0, 0, 0, 1]
    assert decoder.audit().counts["chunked"] == 2


@pytest.mark.parametrize("settings", [{}, {"pipelined": True}], ids=str)
def test_a_stream_of_prompts_of_one_token_holds_up_no_longer_one(
    slotted: DecoderFactory, settings: dict[str, Setting]
) -> None:
    decoder = slotted.open({"step_tokens_max": 1, "slots": 2, **settings})
    asked = request(*range(30, 36), new=2)
    events = submit(decoder, asked)
    for who in range(1, 12):
        events += submit(decoder, request(who, new=3), start=who) + decoder.step()
    assert 0 not in decoder.live
    assert close(logits(events, 0), alone(slotted, asked))


def test_a_piece_is_counted_once_though_it_is_planned_twice(paged: DecoderFactory) -> None:
    decoder = paged.open({"step_tokens_max": 4, "pipelined": True, "page_size": 4, "pool_tokens": 20})
    submit(decoder, request(*range(30, 46), new=2), request(5, 6, new=2))
    planned = 0
    plan_step = decoder.plan_step

    def counted(rows: tuple[int, ...] | None) -> object:
        nonlocal planned
        planned += 1
        return plan_step(rows)

    decoder.plan_step = counted  # type: ignore[method-assign, assignment]
    steps, told = 0, 0
    while decoder.live:
        told += sum(isinstance(event, Prefilled) for event in decoder.step())
        steps += 1
    assert planned > steps, "else nothing is planned twice here"
    assert decoder.audit().counts["chunked"] == told


@pytest.mark.parametrize("settings", [{}, {"pipelined": True}], ids=str)
def test_a_request_that_is_cancelled_between_two_pieces_gives_everything_back(
    paged: DecoderFactory, settings: dict[str, Setting]
) -> None:
    decoder = paged.open({"step_tokens_max": 8, "page_size": 4, **settings})
    neighbour, victim = request(4, new=9), request(*range(30, 53), new=4)
    events = submit(decoder, neighbour, victim)
    for _ in range(3):
        events += decoder.step()
    cells = decoder.store.lengths[1]
    assert 0 < cells < len(victim.prompt)
    events += decoder.cancel(1, Reason.CANCELLED) + drain(decoder) + decoder.step()
    assert close(logits(events, 0), alone(paged, neighbour))
    assert_all_given_back(decoder)
    events = submit(decoder, victim, start=2) + drain(decoder)
    assert close(logits(events, 2), alone(paged, victim)), "what was run of it is found, and right"
