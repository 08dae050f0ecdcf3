"""Attention as it was recorded: queries, what they saw, and what came of it. Data against data, no network.

One `Attention` is one layer of one forward. Logits and weights are recomputed from Q and K, in the recorded dtype, where the
kernel does not show them. Invariant: every tensor is a copy, so what is written later does not change what was seen.

Shapes: B rows, H query heads, G key heads (H is a multiple of G), Q queries, T cells, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

_FAR_BELOW = -1e8
"""An additive mask hides what it puts below this, or below half of what its dtype can hold."""


@dataclass(frozen=True)
class Attention:
    """One layer's attention.

    Attributes:
        queries: [B, H, Q, D]; None where an attention written out by hand did not show them.
        keys: [B, G, T, D]; None as queries.
        values: [B, G, T, D]; None as queries.
        visible: bool [B, H, Q, T].
        output: [B, H, Q, D]; None as queries.
        scale: Queries times keys times this are the logits.
        bias: What is added to the logits, where they are recomputed: [B, H, Q, T] or None.
        shown_logits, shown_weights: [B, H, Q, T] before and after the softmax, where the attention shows them.
    """

    queries: torch.Tensor | None
    keys: torch.Tensor | None
    values: torch.Tensor | None
    visible: torch.Tensor
    output: torch.Tensor | None
    scale: float = 1.0
    bias: torch.Tensor | None = None
    shown_logits: torch.Tensor | None = None
    shown_weights: torch.Tensor | None = None

    @cached_property
    def logits(self) -> torch.Tensor | None:
        """[B, H, Q, T] before the softmax, zero where nothing is seen."""
        if self.shown_logits is not None:
            return self.shown_logits.masked_fill(~self.visible, 0.0)
        if self.queries is None or self.keys is None:
            return None
        keys = self.keys.repeat_interleave(self.queries.shape[1] // self.keys.shape[1], dim=1)
        logits = self.queries @ keys.transpose(-2, -1) * self.scale
        if self.bias is not None:
            logits = logits + self.bias
        return logits.masked_fill(~self.visible, 0.0)

    @cached_property
    def weights(self) -> torch.Tensor | None:
        """[B, H, Q, T] after the softmax."""
        if self.shown_weights is not None:
            return self.shown_weights
        if self.logits is None:
            return None
        return self.logits.masked_fill(~self.visible, -torch.inf).softmax(-1)

    def row(self, index: int, queries: int) -> Attention:
        """One row of the batch with its first `queries` queries, as an attention of one row."""

        def one(whole: torch.Tensor) -> torch.Tensor:
            return whole[index : index + 1]

        return self._each(lambda whole: one(whole)[:, :, :queries], one)

    def stretch(self, first: int, count: int) -> Attention:
        """The same with only the queries from `first` on, `count` of them."""
        return self._each(lambda whole: whole[:, :, first : first + count], lambda whole: whole)

    def unpacked(self, heads: int) -> Attention:
        """The same where the heads of a group stand as queries of their key head, as transformers packs one-token rows."""
        batch, groups, queries, _ = self.visible.shape
        if groups == heads or groups * queries != heads:
            return self
        return self._each(lambda whole: whole.reshape(batch, heads, 1, -1), lambda whole: whole)

    def _each(
        self, by_query: Callable[[torch.Tensor], torch.Tensor], by_cell: Callable[[torch.Tensor], torch.Tensor]
    ) -> Attention:
        """The same with what is there for each query, and for each cell, changed."""

        def change(whole: torch.Tensor | None, by: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
            return None if whole is None else by(whole)

        return Attention(
            queries=change(self.queries, by_query),
            keys=change(self.keys, by_cell),
            values=change(self.values, by_cell),
            visible=by_query(self.visible),
            output=change(self.output, by_query),
            scale=self.scale,
            bias=change(self.bias, by_query),
            shown_logits=change(self.shown_logits, by_query),
            shown_weights=change(self.shown_weights, by_query),
        )


def hidden_below(dtype: torch.dtype) -> float:
    """An additive mask in this dtype hides what it puts below this."""
    return max(_FAR_BELOW, torch.finfo(dtype).min / 2)
