"""Items: batches of an encoder-only network. What a slot keeps is the item itself, as far as it has come.

An item comes whole or in chunks, and grows by its answer. Each forward encodes the items of its rows from the beginning, in
one batch as wide as the longest; what stands behind a shorter one is whatever its slot held before, and only the lengths
that the network is told keep it out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.decoder.runner import Runner
from targets.decoder.slots import SlotStore
from targets.models import Plan


class ItemStore(SlotStore):
    """Token ids where others have K and V: one layer, whose halves both hold them.

    What cells are filled with counts from the end of the vocabulary where it is below zero.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, dataclasses.replace(layout, dtype=torch.int64))

    def items(self, rows: Rows) -> torch.Tensor:
        """The rows' slots, int64 [B, T], behind their tokens whatever was there."""
        ids, _ = self.read(0, rows)
        return ids[:, 0, :, 0] % self.plan.vocabulary


class ItemRunner(Runner):
    """Encodes the items of a batch, and reads an answer off each."""

    store: ItemStore

    def logits(self, rows: Rows, masks: dict[str, Any]) -> torch.Tensor:
        """Adds the new tokens to the items, and asks the network: logits [B, V]."""
        ids = rows.ids[:, None, :, None]
        self.store.write(0, ids, ids, rows)
        return self.answers(self.store.items(rows), rows.positions[:, -1] + 1)

    def answers(self, items: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] of items [B, T], of which the first `lengths` tokens of each are its own."""
        answers: torch.Tensor = self.network(input_ids=items, lengths=lengths)
        return answers
