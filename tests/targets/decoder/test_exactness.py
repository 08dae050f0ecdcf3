from __future__ import annotations

import pytest
import torch

from targets.models import Model, find_model, logits_of, tiny_names
from targets.protocol import Event, Request
from tests.targets.decoder.driving import drain, logits, opened, request, submit, tokens

BOUNDS = {"tiny-bloom": 1e-5, "tiny-mamba": 1e-5, "tiny-bamba": 1e-4, "tiny-olmo-hybrid": 1e-4}
"""Largest logit difference in float64; BLOOM takes its softmax in float32, as recurrent layers do their states."""
BOUND = 1e-12


def asked(count: int) -> list[Request]:
    """Requests of unequal lengths round the tiny models' window of 16."""
    lengths = (3, 17, 1, 33, 15)[:count]
    return [
        Request(prompt=tuple((7 * index + 13 * place) % 250 for place in range(length)), max_new_tokens=4 + 3 * index)
        for index, length in enumerate(lengths)
    ]


def difference(model: Model, asked: list[Request], events: list[Event], dtype: str = "float64") -> float:
    """The largest logit difference between what was streamed and one cacheless forward a request."""
    network = model.load(dtype, dtype, "cpu")
    worst = 0.0
    for who, answer in tokens(events).items():
        prompt = asked[who].prompt
        with torch.inference_mode():
            ids = torch.tensor([(*prompt, *answer[:-1])])
            expected = logits_of(network(input_ids=ids, use_cache=False))[0, len(prompt) - 1 :]
        assert answer == tuple(expected.argmax(-1).tolist())
        worst = max(worst, float((logits(events, who) - expected).abs().max()))
    return worst


def served(model: Model, requests: list[Request], **settings: int | str) -> list[Event]:
    """Two slots for all: they join while others decode, and every slot changes hands."""
    decoder = opened(model, slots=2, **settings)
    events = submit(decoder, *requests[:2])
    events += decoder.step()
    events += submit(decoder, *requests[2:], start=2)
    return events + drain(decoder)


@pytest.mark.parametrize("name", tiny_names())
def test_a_reused_slot_gives_the_logits_of_the_request_alone(name: str) -> None:
    model, requests = find_model(name), asked(5)
    events = served(model, requests)
    assert {who: len(answer) for who, answer in tokens(events).items()} == {0: 4, 1: 7, 2: 10, 3: 13, 4: 16}
    assert not difference(model, requests, events) > BOUNDS.get(name, BOUND)


@pytest.mark.parametrize("prefill", ["mixed", "apart", "alone"])
def test_which_rows_share_a_forward_changes_no_answer(tiny: Model, prefill: str) -> None:
    requests = asked(5)
    assert not difference(tiny, requests, served(tiny, requests, prefill=prefill)) > BOUND


def test_float32_differs_by_rounding_only(tiny: Model) -> None:
    requests = asked(4)
    events = served(tiny, requests, dtype="float32")
    assert not difference(tiny, requests, events, dtype="float32") > 1e-3


def test_the_same_calls_give_the_same_bits(tiny: Model) -> None:
    first, second = (served(tiny, asked(4)) for _ in range(2))
    for who in range(4):
        assert torch.equal(logits(first, who), logits(second, who))


def test_a_prompt_and_an_answer_fill_a_slot_to_its_last_cell(tiny: Model) -> None:
    requests = [request(*range(10), new=50), request(*range(20, 35), new=50)]
    decoder = opened(tiny, context_tokens_max=16)
    events = submit(decoder, *requests) + drain(decoder)
    assert {who: len(answer) for who, answer in tokens(events).items()} == {0: 6, 1: 1}
    assert not difference(tiny, requests, events) > BOUND
