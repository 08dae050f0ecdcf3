from __future__ import annotations

import pytest
import torch

from fuzz.conductor import replay
from fuzz.probe import Probe
from oracle.attention import Attention
from targets.decoder import DecoderFactory
from targets.models import Model, find_model
from targets.protocol import Admitted, Request, Schedule, Setting, Submit, emitted_by_submission
from tests.targets.decoder.driving import request

LABELLED = request(1, 2, 3, 4, 5, 6, new=6, untrusted=(1, 4))
PLAIN = request(1, 2, 3, 4, 5, 6, new=6)


def logits(factory: DecoderFactory, *asked: Request, **settings: Setting) -> list[torch.Tensor]:
    """The logits [n, V] of each request's answer."""
    heard = emitted_by_submission(replay(factory, Schedule(ops=tuple(map(Submit, asked)), settings=settings)))
    return [torch.stack([event.logits for event in heard[who] if event.logits is not None]) for who in range(len(asked))]


def prompt_attention(factory: DecoderFactory, asked: Request, **settings: Setting) -> list[Attention]:
    """The attention of a request's first forward, a layer each."""
    decoder, probe = factory.open(settings), Probe()
    decoder.submit(0, asked)
    with probe:
        decoder.step()
    return probe.take()


@pytest.mark.parametrize("target", ["slots", "pages", "private", "threads"])
@pytest.mark.parametrize("model", ["tiny", "tiny-gemma3"])
def test_labels_are_inert_to_the_bit_where_the_bias_is_off(model: str, target: str) -> None:
    factory = DecoderFactory(find_model(model), name=target)
    for ours, theirs in zip(logits(factory, LABELLED, request(7)), logits(factory, PLAIN, request(7)), strict=True):
        assert ours.equal(theirs)


def test_a_bias_is_inert_to_the_bit_where_nothing_is_labelled(tiny: Model) -> None:
    factory = DecoderFactory(tiny)
    (ours,), (theirs,) = logits(factory, PLAIN, trust_bias=8), logits(factory, PLAIN)
    assert ours.equal(theirs)


def test_a_labelled_request_answers_otherwise_and_its_neighbour_as_ever(tiny: Model) -> None:
    factory = DecoderFactory(tiny)
    (labelled, beside), (plain, before) = (
        logits(factory, LABELLED, request(7), trust_bias=4),
        logits(factory, PLAIN, request(7), trust_bias=4),
    )
    assert (labelled - plain).abs().max() > 1e-3
    assert (beside - before).abs().max() < 1e-12, "a mask that is added rounds otherwise, and no more"


def test_a_bias_multiplies_the_weight_of_what_is_labelled_for_those_outside(tiny: Model) -> None:
    factory = DecoderFactory(tiny)
    (with_bias, *_), (without, *_) = (prompt_attention(factory, LABELLED, trust_bias=nats) for nats in (2, 0))
    assert with_bias.weights is not None
    assert without.weights is not None
    expected = without.weights.clone()
    expected[:, :, 4:, 1:4] *= torch.exp(torch.tensor(-2.0, dtype=torch.float64))
    expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(with_bias.weights, expected)
    torch.testing.assert_close(with_bias.weights[:, :, :4], without.weights[:, :, :4])


@pytest.mark.parametrize("window", ["mask", "ring"])
def test_a_label_is_where_it_was_when_a_ring_has_turned(window: str) -> None:
    factory = DecoderFactory(find_model("tiny-gemma3"))
    asked = request(*range(1, 9), new=12, untrusted=(6, 8))
    settings: dict[str, Setting] = {"window": window, "ring_append_max": 1, "step_tokens_max": 4, "trust_bias": 4}
    kept = logits(factory, asked, **{**settings, "window": "mask"})
    torch.testing.assert_close(logits(factory, asked, **settings), kept)


def test_labelled_cells_are_not_shared_and_those_of_others_are(tiny: Model) -> None:
    factory = DecoderFactory(tiny, name="pages")
    for first, second, cached in ((PLAIN, PLAIN, True), (LABELLED, PLAIN, False), (PLAIN, LABELLED, False)):
        ops = (Submit(first), Submit(second))
        settings: dict[str, Setting] = {"page_size": 1, "admit_max": 1, "trust_bias": 2}
        trace = replay(factory, Schedule(ops=ops, settings=settings))
        found = [event.cached for event in trace if isinstance(event, Admitted) and event.submission == 1]
        assert bool(found[0]) is cached


def test_under_the_sanitizer_a_bias_hides_and_shows_what_the_mask_does(tiny: Model) -> None:
    factory = DecoderFactory(tiny)
    reports = []
    for nats in (0, 2):
        decoder = factory.open({"sanitize": True, "trust_bias": nats})
        decoder.submit(0, LABELLED)
        reports.append([event for event in decoder.step() if hasattr(event, "visible")])
    assert reports[0]
    for ours, theirs in zip(*reports, strict=True):
        assert ours.visible.equal(theirs.visible)
