"""Pictures: features that requests with one picture share, and a causal LM whose cells, theirs too, are each one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from targets.decoder.crossing import SourceRunner, SourceStore
from targets.decoder.rows import Rows
from targets.decoder.runner import Feed
from targets.networks.pictured import PATCHES


class PictureStore(SourceStore):
    """A prompt's first tokens are its picture."""

    def source(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(tokens[:PATCHES])

    def fork(self, slot: int, sibling: int, cells: int) -> int:
        entry = self.shelf.held[slot] = self.shelf.held[sibling]
        entry.users.append(slot)
        return 0


class PictureRunner(SourceRunner):
    """Puts features where the tokens of pictures stand."""

    store: PictureStore

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """Logits [B, V], the pictures of all rows encoded before."""
        self.encode([self.store.shelf.held[feed.slot] for feed in feeds])
        return super().forward(feeds)

    def logits(self, rows: Rows, masks: dict[str, Any]) -> torch.Tensor:
        """As of any LM, with each row's features beside its tokens."""
        features, pictured = self.among(rows)
        return super().logits(rows, {**masks, "features": features, "pictured": pictured})

    def among(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """For each token the feature that may stand in its place, [B, Q, C], and whether it does: bool [B, Q]."""
        features, lengths = self.store.padded(self.looked_at(rows), PATCHES)
        which = self.which(rows).clamp(max=PATCHES - 1)
        return features[torch.arange(len(features), device=self.device)[:, None], which], rows.positions < lengths[:, None]

    def which(self, rows: Rows) -> torch.Tensor:
        """Which of its picture's features stands in each token's place, int64 [B, Q]; more than there are behind it."""
        return rows.positions
