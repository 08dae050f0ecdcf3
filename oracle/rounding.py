"""Rounding: how far logits move when nothing but the arithmetic changes.

Measured on the reference network itself: one request in forwards of other shapes (a longer one, where causality keeps its
logits in exact arithmetic, and one with copies of itself). A recurrent network computes its states in one of two ways: many
positions at once in a forward of several tokens, and one from the last in a forward of one. The reference always does the
first and a decoder must do the second, and both round to float32 inside whatever the dtype; so there the same request is
also fed a token at a time, to transformers' own cache. No target code runs, so that a broken target cannot widen the bound
it is judged by. The envelope nominates suspects; it never convicts.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from oracle.reference import answering, asks_for_prompt

FACTORS = {torch.float64: 64.0, torch.float32: 8.0}
"""Bound over envelope, by precision. A target's own shapes (ragged batches, one-token rows) are not among those measured
here: on clean runs of seven tiny models its differences reached 2.5 times the envelope in float64 and 1.7 to 8.8 times in
float32. In float64 what is beyond the bound needs no further experiment, and 64 times the envelope is still under 1e-12 of
a logit (1e-5 for BLOOM, whose softmax is float32)."""
FACTOR_HALF = 2.0
"""The same in bfloat16 and float16, where clean runs reached 0.6 to 1.5 times: their unit in the last place, which is the
least that the envelope can be, is already what another order of the sums makes."""

_LENGTHS = (1, 2, 5, 17, 40, 97, 160)
_BATCHES = (1, 2, 4, 8)
_PROMPT_LENGTHS, _ANSWER = (1, 2, 5, 17, 40), 5
_LARGE_WEIGHTS = 20_000_000


@torch.inference_mode()
def envelope(network: nn.Module, vocabulary: int, prompts: int = 2) -> float:
    """The largest logit difference between equal requests in forwards of unequal shape.

    At least one unit in the last place of the largest logit: in narrow types few shapes may happen to agree.
    """
    if asks_for_prompt(network):
        return _envelope_of_prompts(network, vocabulary, prompts)
    weights = list(network.parameters())
    large = sum(weight.numel() for weight in weights) > _LARGE_WEIGHTS
    lengths, batches = (_LENGTHS[:5], _BATCHES[:2]) if large else (_LENGTHS, _BATCHES)
    generator = torch.Generator().manual_seed(7)
    worst, asked, answered = 0.0, [], []
    for _ in range(prompts):
        tokens = torch.randint(0, vocabulary, (1, lengths[-1]), generator=generator).to(weights[0].device)
        whole = _logits(network, tokens)
        worst = max(worst, torch.finfo(weights[0].dtype).eps * float(whole.abs().max()))
        for length in lengths[:-1]:
            part = tokens[:, :length]
            for batch in batches:
                moved = _logits(network, part.repeat(batch, 1)) - whole[:, :length]
                worst = max(worst, float(moved.abs().max()))
        asked.append(tokens)
        answered.append(whole)
    if keeps_states(network):
        moved = _token_by_token(network, torch.cat(asked)) - torch.cat(answered)
        worst = max(worst, float(moved.abs().max()))
    return worst


def _envelope_of_prompts(network: nn.Module, vocabulary: int, prompts: int) -> float:
    """The same where each prompt is a whole: its answer in longer and shorter parts, and with copies of itself."""
    weights = next(network.parameters())
    generator = torch.Generator().manual_seed(7)
    worst = 0.0
    for _ in range(prompts):
        tokens = torch.randint(0, vocabulary, (1, _LENGTHS[-1]), generator=generator).to(weights.device)
        for length in _PROMPT_LENGTHS:
            whole = answering(network, tokens[:, : length + _ANSWER], length).double()
            worst = max(worst, torch.finfo(weights.dtype).eps * float(whole.abs().max()))
            for batch in _BATCHES:
                part = tokens[:, : length + batch // 2].repeat(batch, 1)
                moved = answering(network, part, length).double()
                worst = max(worst, float((moved - whole[:, : moved.shape[1]]).abs().max()))
    return worst


def bound(network: nn.Module, vocabulary: int) -> float:
    """The logit difference beyond which a request is a suspect."""
    dtype = next(network.parameters()).dtype
    return FACTORS.get(dtype, FACTOR_HALF) * envelope(network, vocabulary)


def _logits(network: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, n, V] in double."""
    output: Any = network(input_ids=tokens, use_cache=False)
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits.double()


def keeps_states(network: nn.Module) -> bool:
    """Whether a layer keeps a state instead of, or beside, its K and V."""
    if not isinstance(network, PreTrainedModel):
        return False
    layers = DynamicCache(config=network.config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def _token_by_token(network: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, n, V] in double of int64 [B, n], a token a forward.

    Not several: some networks forget their state where a forward of several tokens follows another one.
    """
    cache = DynamicCache(config=network.config)
    with_positions = "position_ids" in inspect.signature(network.forward).parameters
    logits = []
    for place, token in enumerate(tokens.unbind(1)):
        # Some networks number the positions of every forward from 0 where they are not told.
        told = {"position_ids": torch.tensor([[place]], device=tokens.device)} if with_positions else {}
        logits.append(network(input_ids=token[:, None], cache=cache, use_cache=True, **told).logits)
    return torch.cat(logits, dim=1).double()
