"""SlotStore: the K and V of every slot in preallocated slabs, one a layer: [S, T, 2 H, D].

Positions are the outer axis and K and V stand side by side, so that all of a slot's first cells are copied in one piece.

Isolation is logical: nothing but the length and the mask keeps one owner of a slot from another. A windowed layer's T may be
a ring, shorter than the request: position p stands in cell p % T, and the mask knows which position each cell holds.
"""

from __future__ import annotations

import torch

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.decoder.slabs import SlabStore, memory_of
from targets.decoder.store import Store
from targets.models import LayerPlan, Plan
from targets.protocol.tags import NEVER


class SlotStore(SlabStore):
    """Owns the slabs, [S, T, 2 H, D] each; their halves are seen as [S, H, T, D].

    Attributes:
        tags: a shadow of each layer's slabs, int64 [S, T]; empty unless `shadow` was called.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.rooms = [layout.room(layer.window) for layer in plan.layers]
        self.ring = min(self.rooms) if layout.append_max is not None else None

    def shape(self, layer: LayerPlan) -> tuple[int, ...]:
        return len(self.lengths), self.layout.room(layer.window), 2 * layer.heads, layer.head_size

    def halves(self, slab: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = slab.transpose(1, 2).tensor_split(2, dim=1)
        return keys, values

    def at(self, place: int) -> int:
        return self.row_of(place)

    def shadow(self) -> None:
        self.tags = [torch.full(slab.shape[:2], NEVER, dtype=torch.int64, device=slab.device) for slab in self.slabs]

    def row_of(self, slot: int) -> int:
        """The row of the slabs in which a slot stands."""
        return slot

    def storage(self, slot: int) -> tuple[tuple[int, int, int], ...]:
        return memory_of(self.slabs, self.row_of(slot)) if self.tags else ()

    def grew(self, slot: int, tokens: int) -> None:
        super().grew(slot, tokens)
        if self.ring is not None:
            self.counts["ring_wrapped"] += self.lengths[slot] - tokens <= self.ring < self.lengths[slot]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        room, new = self.rooms[layer], torch.cat((keys, values), dim=1)  # [B, 2 H, Q, D]
        if rows.written is None:
            slot, position, new = rows.slots, rows.positions[:, 0], new[:, :, 0]
        else:
            row, column, slot, position = rows.written
            new = new[row, :, column]  # [N, 2 H, D]: advanced indices on either side of a slice come first
        if rows.cells > room:
            position = position % room
        # Not `slab[slot, position] = new`: an index for each axis takes twice as long for a few rows.
        self.slabs[layer].flatten(0, 1).index_copy_(0, torch.add(position, slot, alpha=room), new)
        if rows.tags is not None:
            self.tags[layer][slot, position] = rows.tags

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        cells = min(rows.cells, self.rooms[layer])
        if rows.tags is not None:
            rows.attended.append(self.tags[layer][rows.slots, :cells])
        # Not `slab[rows.slots, :T]`: an advanced index copies the same cells element by element, three times slower.
        return self.halves(self.slabs[layer][:, :cells].index_select(0, rows.slots))


class SlotCache:
    """What the network sees as `cache=`: writes each row at its own positions, returns what the rows may see."""

    is_compileable = False

    def __init__(self, store: Store, rows: Rows) -> None:
        self.store = store
        self.rows = rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes K and V [B, H, Q, D] of this forward; returns those of all T cells, [B, H, T, D]."""
        store, dtype = self.store, key_states.dtype
        if store.layout.dtype == dtype:
            store.write(layer_idx, key_states, value_states, self.rows)
            return store.read(layer_idx, self.rows)
        store.write(layer_idx, key_states.to(store.layout.dtype), value_states.to(store.layout.dtype), self.rows)
        keys, values = store.read(layer_idx, self.rows)
        return keys.to(dtype), values.to(dtype)

    def keep(self) -> None:
        """The forward is done. K and V were written as they came."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Cells before this forward's queries, for networks that build their own causal mask (ALiBi)."""
        return self.rows.cells - self.rows.positions.shape[1]

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """As `get_seq_length`."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """(cells, offset of the first)."""
        return self.rows.cells, 0
