"""Rounding: how far logits may move when only the arithmetic changes, measured without the defendant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.rounding import FACTORS, bound, envelope
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model, find_model


class Loud(nn.Module):
    """A network that answers a lone request otherwise than the same request in a batch."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        return torch.zeros(*input_ids.shape, 8) + (len(input_ids) > 1) * 0.25

    def parameters(self, recurse: bool = True) -> object:  # type: ignore[override]
        return iter([torch.zeros(1)])


def test_the_envelope_is_the_largest_difference_between_forwards_of_unequal_shape() -> None:
    assert envelope(Loud(), vocabulary=8) == 0.25
    assert bound(Loud(), vocabulary=8) == 0.25 * FACTORS[torch.float32]


class LoudWhole(Loud):
    """The same where it must be told what is the prompt, and whose other answers have nothing to do with each other."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool, prompt_tokens: int = 0) -> torch.Tensor:
        answers = super().forward(input_ids, use_cache)[:, prompt_tokens - 1 :]
        return answers + 100 * prompt_tokens


def test_the_envelope_of_a_network_that_is_told_its_prompt_compares_answers_to_one_prompt_only() -> None:
    assert envelope(LoudWhole(), vocabulary=8) == 0.25


@pytest.mark.slow
def test_the_envelope_is_tiny_in_float64_positive_in_float32_and_larger_in_bfloat16(tiny: Model) -> None:
    size = {name: envelope(tiny.load(name, name, "cpu"), 320) for name in ("float64", "float32", "bfloat16")}
    assert 0 < size["float32"] < size["bfloat16"]
    assert size["float64"] < 1e-12 < size["float32"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@torch.inference_mode()
def test_the_envelope_of_a_recurrent_network_holds_what_one_token_a_forward_makes_of_it(dtype: str) -> None:
    network: Any = find_model("tiny-bamba").load(dtype, dtype, "cpu")
    tokens = torch.randint(0, 320, (1, 60), generator=torch.Generator().manual_seed(3))
    whole, cache, steps = network(input_ids=tokens, use_cache=False).logits, None, []
    for place in range(tokens.shape[1]):
        where = torch.tensor([[place]])
        output = network(input_ids=tokens[:, place : place + 1], position_ids=where, cache=cache, use_cache=True)
        cache = output.cache
        steps.append(output.logits)
    moved = float((torch.cat(steps, dim=1) - whole).double().abs().max())
    size = envelope(network, 320)
    assert 0 < moved < 2 * size
    if dtype == "float64":
        assert moved > 1e-8, "the states are float32 whatever the network is, so that forwards of other lengths tell nothing"


@pytest.mark.slow
@torch.inference_mode()
def test_the_envelope_of_a_network_that_forgets_where_several_tokens_follow_is_as_narrow_as_any() -> None:
    model = find_model("tiny-mamba")
    network: Any = model.load("float64", "float64", "cpu")
    assert not model.plan.continues
    tokens = torch.arange(8)[None]
    whole = network(input_ids=tokens, use_cache=False).logits[:, 4:]
    cache = network(input_ids=tokens[:, :4], use_cache=True).cache
    forgetful = network(input_ids=tokens[:, 4:], cache=cache, use_cache=True).logits
    assert envelope(network, 320) < 1e-4 < 0.1 < float((forgetful - whole).abs().max())


@pytest.mark.slow
def test_a_target_cannot_widen_the_bound_it_is_judged_by(tiny: Model) -> None:
    fault = FAULTS["position-restarts"]
    honest, broken = Judge(DecoderFactory(tiny)), Judge(DecoderFactory(tiny, fault.plant()))
    for schedule in fault.smallest.values():
        assert run_trio(broken.judge, schedule).findings
    assert broken.reference({}).bound == honest.reference({}).bound
