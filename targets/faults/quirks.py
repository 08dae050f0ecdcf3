"""Quirks: planted like faults, and no bugs. What a judge must leave alone, and under which it must still see a leak."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from targets.decoder import Feed, Runner
from targets.faults.bank import PREFILLS_TOGETHER, Probe, Quirk


class BatchSizedRunner(Runner):
    """Sums every projection in as many parts as the forward has rows, each rounded: another order for another batch size.

    Real kernels do so (split-K, and tiles chosen by shape). With one row nothing changes. The twin leaves the sums whole.
    Measured on `tiny` in bfloat16: 33 of 262 requests give another token than alone, and 44 pass the bound that nominates.
    (In the last projection alone 13 gave another token and none passed it: the experiments would have had nothing to do.)
    """

    batch_sized_sum: Probe

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        probe, rows = self.batch_sized_sum, len(feeds)
        probe.reach()
        if probe.honest or rows == 1:
            return super().forward(feeds)

        def in_parts(linear: Any, inputs: tuple[torch.Tensor, ...], whole: torch.Tensor) -> torch.Tensor:
            count = min(linear.in_features, rows)
            pieces = zip(inputs[0].tensor_split(count, -1), linear.weight.tensor_split(count, -1), strict=True)
            total = functools.reduce(torch.add, [functional.linear(left, right) for left, right in pieces])
            total = total if linear.bias is None else total + linear.bias
            probe.change(not torch.equal(total, whole))
            return total

        linears = [module for module in self.network.modules() if isinstance(module, nn.Linear)]
        hooks = [linear.register_forward_hook(in_parts) for linear in linears]
        try:
            return super().forward(feeds)
        finally:
            for hook in hooks:  # the network is shared by all targets of a factory
                hook.remove()


QUIRKS = (
    Quirk(
        name="batch-sized-sum",
        group="rounding",
        modelled_on="kernels that are not batch-invariant: split-K matrix products (PyTorch, vLLM)",
        doc="the order in which projections are summed depends on the number of rows; in narrow types tokens flip",
        mixins={"runner": BatchSizedRunner},
        models=tuple(name for name in PREFILLS_TOGETHER if name != "tiny-gpt2"),
        targets=("slots", "pages", "private"),
    ),
)
