"""Packed segments: a step's tokens of all requests stand in one row, one segment after the other, and nothing is padding.

    tokens     a0 a1 a2 | b5 | c0 c1      positions restart with each segment
    cells      a0 a1 a2 | b0 … b5 | c0 c1      and so do those of the cells that they see

Each segment's cells are gathered behind those of the one before. What a token sees is in its own segment, up to its own
position; the positions alone would let it see everybody's, and the order in the row everybody's before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from targets.decoder.rows import Rows
from targets.decoder.runner import Feed, Runner
from targets.decoder.slots import SlotStore
from targets.protocol.tags import POSITION_SHIFT, pack


@dataclass(slots=True, kw_only=True)
class PackedRows(Rows):
    """One row, [1, N], of the tokens of B segments, over the T cells of their slots.

    Attributes:
        segments: int64 [N], the segment of each token.
        owners: int64 [T], the segment of each cell.
        held: int64 [T], the position that each cell holds.
    """

    segments: torch.Tensor
    owners: torch.Tensor
    held: torch.Tensor


class SegmentStore(SlotStore):
    """A slab, read as one row of the cells of several slots."""

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(rows, PackedRows), "rows are laid out by a SegmentRunner"
        cells = torch.add(rows.held, rows.slots[rows.owners], alpha=self.rooms[layer])  # [T]
        if rows.tags is not None:
            rows.attended.append(self.tags[layer].view(-1)[cells].expand(len(rows.slots), -1))
        return self.halves(self.slabs[layer].flatten(0, 1).index_select(0, cells)[None])


class SegmentRunner(Runner):
    """Packs what its rows bring into one."""

    together = True
    store: SegmentStore

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counts.update(dict.fromkeys(("segments_packed", "segments_mixed"), 0))

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        """Where each token stands: behind those of the segments before it, and at a position of its own request's."""
        counts = [len(feed.tokens) for feed in feeds]
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        self.counts["segments_packed"] += len(feeds) if len(feeds) > 1 else 0
        self.counts["segments_mixed"] += min(counts) == 1 < max(counts)
        positions = [range(start, length) for start, length in zip(starts, lengths, strict=True)]
        ids, places = self.on_device([list(chain(*(feed.tokens for feed in feeds))), list(chain(*positions))])
        slots, ends = self.on_device([[feed.slot for feed in feeds], self.ends(counts)])
        segments, columns = self.on_device([self.spread(counts), list(range(sum(counts)))])
        owners, held = self.on_device([self.spread(lengths), list(chain(*map(range, lengths)))])
        return PackedRows(
            ids=ids[None],
            positions=places[None],
            slots=slots,
            cells=sum(lengths),
            last=(torch.zeros_like(ends), ends - 1),
            written=(torch.zeros_like(columns), columns, slots[segments], places),
            segments=segments,
            owners=owners,
            held=held,
        )

    def ends(self, counts: Sequence[int]) -> list[int]:
        """Where each segment ends, of segments of these lengths."""
        return [sum(counts[: index + 1]) for index in range(len(counts))]

    def spread(self, counts: Sequence[int]) -> list[int]:
        """The number of each segment, as often as it is long."""
        return [segment for segment, count in enumerate(counts) for _ in range(count)]

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        """Bool [1, 1, N, T]: a token sees the cells of its own segment up to its own position, the last `window` of them."""
        assert isinstance(rows, PackedRows), "rows are laid out by a SegmentRunner"
        held, queries = rows.held, rows.positions[0, :, None]
        seen = (rows.owners == rows.segments[:, None]) & (held <= queries)
        return (seen if window is None else seen & (held > queries - window))[None, None]

    def positions_held(self, rows: Rows, window: int | None) -> torch.Tensor:
        assert isinstance(rows, PackedRows), "rows are laid out by a SegmentRunner"
        return rows.held

    def tags(self, feeds: Sequence[Feed], rows: Rows) -> torch.Tensor:
        assert isinstance(rows, PackedRows), "rows are laid out by a SegmentRunner"
        (owners,) = self.on_device([[pack(feed.submission, self.store.generations[feed.slot]) for feed in feeds]])
        return owners[rows.segments] + (rows.positions[0] << POSITION_SHIFT)
