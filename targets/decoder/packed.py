"""Packed: linear layers whose weights are laid out once in the blocks that oneDNN's matrix kernels read.

torch gives a float32 product of a few rows to a kernel that takes plain weights as they lie and goes through them once for
every few rows, so that eight rows cost several times one. Packed weights are read in order, and once. The products are the
same sums in another order, a rounding. Weights that fit into the processor's caches gain nothing.

The two operators are those that torch's own compiler emits for frozen weights on a CPU.
"""

from __future__ import annotations

import torch
from torch import nn

ROWS = 8
"""As many rows a product is expected to have; it may have any number."""
PACKABLE = ("float32", "bfloat16")
LARGE = 4_000_000
"""From so many weights on a network is worth it."""


class PackedLinear(nn.Module):
    """A linear layer [.., inputs] to [.., outputs] with another one's bias, and its weights in packed form only."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), ROWS)
        self.bias = plain.bias

    @property
    def weight(self) -> torch.Tensor:
        """The plain weights [outputs, inputs], unpacked: some modules ask a layer for their dtype."""
        plain: torch.Tensor = self.packed.to_dense()
        return plain

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The product, by oneDNN."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return result


def is_large(network: nn.Module) -> bool:
    """Whether the weights are too many for a processor's caches."""
    return sum(weights.numel() for weights in network.parameters()) >= LARGE


def pack(network: nn.Module) -> nn.Module:
    """Exchanges a network's linear layers, in place, for packed ones, and returns it. They must not be trained any more."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
    return network
