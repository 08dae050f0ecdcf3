"""Padded batches: rows that are nobody's fill a forward up to a size that was captured, and nobody notices."""

from __future__ import annotations

import pytest
import torch

from targets.decoder import DecoderFactory
from targets.decoder.runner import CAPTURED, NOBODY
from targets.models import find_model
from targets.protocol import Attended, Setting
from tests.targets.decoder.driving import alone, assert_all_given_back, close, drain, logits, request, submit, tokens

ASKED = [request(*range(30 * who + 1, 30 * who + 1 + length), new=4) for who, length in enumerate((3, 11, 1, 6, 2))]


@pytest.mark.parametrize("prefill", ["mixed", "apart", "alone"])
@pytest.mark.parametrize("target", ["slotted", "paged", "private"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_answers_are_those_of_the_network_alone(
    request: pytest.FixtureRequest, target: str, prefill: str, count: int
) -> None:
    factory: DecoderFactory = request.getfixturevalue(target)
    decoder = factory.open({"pad_batch": True, "prefill": prefill, "slots": 8})
    events = submit(decoder, *ASKED[:count]) + drain(decoder)
    for who in range(count):
        assert close(logits(events, who), alone(factory, ASKED[who]))
    assert_all_given_back(decoder)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gemma3", "tiny-mixtral", "tiny-bloom", "tiny-bamba", "tiny-mamba"])
@pytest.mark.parametrize("settings", [{}, {"pipelined": True}], ids=str)
def test_tokens_are_the_same_with_padded_batches_on_every_kind_of_network(name: str, settings: dict[str, Setting]) -> None:
    factory = DecoderFactory(find_model(name))
    given = []
    for padded in (False, True):
        decoder = factory.open({"pad_batch": padded, "slots": 8, **settings})
        given.append(tokens(submit(decoder, *ASKED) + drain(decoder)))
    assert given[0] == given[1]


def test_a_forward_has_as_many_rows_as_one_that_was_captured_and_only_then_it_is_counted(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"pad_batch": True, "slots": 8})
    sizes, padded = [], []
    for who, asked in enumerate(ASKED):
        submit(decoder, request(*asked.prompt, new=9), start=who)
        decoder.step()
        sizes += [len(feeds) for feeds, _ in decoder.runner.forwards]
        padded.append(decoder.audit().counts["padded"])
    assert sizes == [1, 2, 4, 4, 8]
    assert set(sizes) <= set(CAPTURED)
    assert padded == [0, 0, 1, 1, 2]


def test_rows_that_are_nobody_s_write_to_no_slot(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"pad_batch": True, "slots": 4})
    before = [slab.clone() for slab in decoder.store.keys]  # type: ignore[attr-defined]
    submit(decoder, *ASKED[:3])
    decoder.step()
    for slab, clean in zip(decoder.store.keys, before, strict=True):  # type: ignore[attr-defined]
        touched = (slab != clean).any(dim=-1).any(dim=1).any(dim=1).nonzero()[:, 0].tolist()
        assert touched == [0, 1, 2, 4], "three of four slots, and the one that is nobody's"


def test_they_are_told_of_as_nobody_s_and_not_at_all_where_it_is_said_who_sees_what(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"pad_batch": True, "sanitize": True})
    submit(decoder, *ASKED[:3])
    (seen,) = [event for event in decoder.step() if isinstance(event, Attended)]
    assert seen.submissions == (0, 1, 2)
    (forward,) = decoder.inspect().forwards
    assert [row.submission for row in forward] == [0, 1, 2, NOBODY]
    assert sorted(decoder.inspect().cells) == [0, 1, 2]


@pytest.mark.parametrize("target", ["slotted", "paged", "private"])
def test_what_stands_where_they_write_changes_no_bit(request: pytest.FixtureRequest, target: str) -> None:
    factory: DecoderFactory = request.getfixturevalue(target)
    answers = []
    for poison in ("low", "high"):
        decoder = factory.open({"pad_batch": True, "poison": poison})
        events = submit(decoder, *ASKED[:3]) + drain(decoder)
        answers.append([logits(events, who) for who in range(3)])
    assert all(torch.equal(a, b) for a, b in zip(*answers, strict=True))
