"""The private store: each cache is its request's alone, grows as it is told to, and goes with it."""

from __future__ import annotations

import pytest
import torch

from targets.decoder import Decoder, DecoderFactory, PrivateStore
from targets.protocol import Reason
from tests.targets.decoder.driving import alone, close, drain, logits, request, submit

ASKED = [request(1, 2, 3, new=6), request(4, new=20), request(*range(30, 53), new=5), request(9, 8, new=3)]
GROWTHS = ["buffer", "cat"]


def store_of(decoder: Decoder) -> PrivateStore:
    assert isinstance(decoder.store, PrivateStore)
    return decoder.store


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_every_answer_is_that_of_the_network_without_a_cache(private: DecoderFactory, growth: str, slots: int) -> None:
    decoder = private.open({"growth": growth, "slots": slots})
    events = submit(decoder, *ASKED) + drain(decoder)
    for who, asked in enumerate(ASKED):
        assert close(logits(events, who), alone(private, asked))


@pytest.mark.parametrize("growth", GROWTHS)
def test_memory_is_there_while_a_request_is_and_gone_with_it(private: DecoderFactory, growth: str) -> None:
    decoder = private.open({"growth": growth})
    assert decoder.audit().allocated == 0
    submit(decoder, *ASKED)
    decoder.step()
    cell = 2 * 2 * 2 * 16 * 8  # K and V of two layers, two heads of 16, float64
    rooms = {"cat": 3 + 1 + 23 + 2, "buffer": 16 + 16 + 32 + 16}[growth]
    assert decoder.audit().allocated == rooms * cell
    drain(decoder)
    assert decoder.audit().allocated == 0
    assert store_of(decoder).caches == {}


@pytest.mark.parametrize("growth", GROWTHS)
def test_rows_that_only_fill_up_a_batch_take_no_more_memory_the_more_there_are(private: DecoderFactory, growth: str) -> None:
    """What is allocated while nobody is there must not depend on what ran before."""
    decoder = private.open({"growth": growth, "pad_batch": True, "slots": 8})
    idle = decoder.audit().allocated
    for count in (1, 3, 5):
        submit(decoder, *ASKED[:3], *ASKED[:2])
        for victim in range(count, 5):
            decoder.cancel(victim, Reason.CANCELLED)
        drain(decoder)
        assert decoder.audit().allocated == idle
    assert decoder.audit().counts["padded"] > 0


def test_a_buffer_doubles_and_a_concatenation_takes_what_it_needs(private: DecoderFactory) -> None:
    rooms: dict[str, list[int]] = {}
    for growth in GROWTHS:
        decoder = private.open({"growth": growth})
        submit(decoder, request(*range(14), new=22))
        rooms[growth] = []
        while decoder.live:
            decoder.step()
            rooms[growth] += [store_of(decoder).caches[0].room(0)] if decoder.live else []
    assert rooms["cat"] == list(range(14, 35))
    assert sorted(set(rooms["buffer"])) == [16, 32, 64]


def test_no_two_caches_share_memory(private: DecoderFactory) -> None:
    decoder = private.open({"sanitize": True})
    submit(decoder, *ASKED)
    decoder.step()
    ranges = [place for holding in decoder.audit().held for place in holding.storage]
    assert len({allocation for allocation, _, _ in ranges}) == len(ranges) == 4 * 4


@pytest.mark.parametrize("growth", GROWTHS)
def test_what_fills_up_a_shorter_cache_changes_no_bit(private: DecoderFactory, growth: str) -> None:
    answers = []
    for poison in ("none", "low", "high"):
        decoder = private.open({"growth": growth, "poison": poison, "sanitize": True, "pad_batch": True})
        events = submit(decoder, *ASKED[:3]) + drain(decoder)
        answers.append([logits(events, who) for who in range(3)])
    assert all(torch.equal(a, b) for other in answers[1:] for a, b in zip(answers[0], other, strict=True))
