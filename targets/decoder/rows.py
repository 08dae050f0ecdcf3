"""Rows: the rows of one forward and where they stand. What the runner lays out, and stores and masks read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Rows:
    """The rows of one forward and where they stand.

    Attributes:
        ids: int64 [B, Q], the new tokens.
        positions: int64 [B, Q]; a row with fewer than Q tokens repeats its last one, whose copies are never written.
        slots: int64 [B], the slot of each row.
        cells: T, as many cells of each slot as the forward may see.
        last: each row's last token in [B, Q], as a pair of int64 [B]; None where Q is 1.
        asked: As `last`, of the tokens behind which logits are wanted where rows have drafts: each row's last token before
            its drafts, then every draft, in order. None where there are none.
        written: the N tokens that are kept, as int64 [N] each: batch row, column in the row, slot, position; None where Q
            is 1 and all are.
        tags: int64 [N], the shadow tags of these tokens; None where the store keeps none.
        attended: Where it does: int64 [B, T] for each layer that has read, the tags of the cells that it was given.
        table: int64 [B, n], the pages of each row, for a store that has them.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    cells: int
    last: tuple[torch.Tensor, torch.Tensor] | None
    written: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None
    asked: tuple[torch.Tensor, torch.Tensor] | None = None
    tags: torch.Tensor | None = None
    attended: list[torch.Tensor] = field(default_factory=list)
    table: torch.Tensor | None = None
