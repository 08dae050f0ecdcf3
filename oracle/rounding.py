"""Rounding: how far logits move when nothing but the arithmetic changes.

Measured on the reference network itself: one request in forwards of other shapes (a longer one, where causality keeps its
logits in exact arithmetic, and one with copies of itself). No target code runs, so that a broken target cannot widen the
bound it is judged by. The envelope nominates suspects; it never convicts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

FACTOR = 8.0
"""Bound over envelope. A target's own shapes (ragged batches, one-token rows) are not among those measured here: on clean
float32 runs of seven tiny models its differences stayed within 2.1 times the envelope."""

_LENGTHS = (1, 2, 5, 17, 40)
_BATCHES = (1, 2, 4, 8)


@torch.inference_mode()
def envelope(network: nn.Module, vocabulary: int, prompts: int = 3) -> float:
    """The largest logit difference between equal requests in forwards of unequal shape."""
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(7)
    worst = 0.0
    for _ in range(prompts):
        tokens = torch.randint(0, vocabulary, (1, max(_LENGTHS)), generator=generator).to(device)
        whole = _logits(network, tokens)
        for length in _LENGTHS:
            part = tokens[:, :length]
            for batch in _BATCHES:
                moved = _logits(network, part.repeat(batch, 1)) - whole[:, :length]
                worst = max(worst, float(moved.abs().max()))
    return worst


def bound(network: nn.Module, vocabulary: int) -> float:
    """The logit difference beyond which a request is a suspect."""
    return FACTOR * envelope(network, vocabulary)


def _logits(network: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    output: Any = network(input_ids=tokens, use_cache=False)
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits.double()
