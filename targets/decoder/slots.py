"""SlotStore: the K and V of every slot in preallocated slabs, one a layer: [S, H, T, D].

Isolation is logical. A slot's cells 0..length-1 are its owner's; what lies behind is whatever an earlier owner left, and
only the mask keeps it out. Slabs start dirty (finite, at the scale of the data), so that a cell read by mistake shows.

With `shadow`, every slab has a twin of tags that is written and read with the very indices that write and read K and V. With
`poison`, the dirt is another constant, and a slot that is freed is filled with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from targets.models import Plan
from targets.protocol import Cells
from targets.protocol.tags import NEVER

_DIRT_KEYS, _DIRT_VALUES = 1.5, -0.75
POISONS = {"low": (-1.5, -3.0), "high": (3.0, 6.0)}
"""K and V of a poisoned cell, at the scale of tiny networks' own. The signs differ: whatever a query is, under one of the
two it is drawn to such a cell."""


@dataclass(slots=True)
class Rows:
    """The rows of one forward and where they stand.

    Attributes:
        ids: int64 [B, Q], the new tokens.
        positions: int64 [B, Q]; a row with fewer than Q tokens repeats its last one, whose copies are never written.
        slots: int64 [B], the slot of each row.
        cells: T, as many cells of each slot as the forward may see.
        last: each row's last token in [B, Q], as a pair of int64 [B]; None where Q is 1.
        written: the N tokens that are kept, as int64 [N] each: batch row, column in the row, slot, position; None where Q
            is 1 and all are.
        tags: int64 [N], the shadow tags of these tokens; None where the store keeps none.
        attended: Where it does: int64 [B, T] for each layer that has read, the tags of the cells that it was given.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    cells: int
    last: tuple[torch.Tensor, torch.Tensor] | None
    written: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None
    tags: torch.Tensor | None = None
    attended: list[torch.Tensor] = field(default_factory=list)


class SlotStore:
    """Owns the slabs and the lengths.

    Attributes:
        keys, values: a slab a layer, [S, H, T, D] each.
        lengths: how many cells of each slot are its owner's.
        generations: how many owners each slot has had.
        tags: a shadow of each layer's slabs, int64 [S, T]; empty unless `shadow` was called.
    """

    def __init__(self, plan: Plan, slots: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        shapes = [(slots, layer.heads, positions, layer.head_size) for layer in plan.layers]
        self.keys = [torch.full(shape, _DIRT_KEYS, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.full(shape, _DIRT_VALUES, dtype=dtype, device=device) for shape in shapes]
        self.lengths = [0] * slots
        self.generations = [0] * slots
        self.tags: list[torch.Tensor] = []
        self._poison: tuple[float, float] | None = None

    def shadow(self) -> None:
        """From now on, who wrote a cell is written down."""
        self.tags = [
            torch.full((slab.shape[0], slab.shape[2]), NEVER, dtype=torch.int64, device=slab.device) for slab in self.keys
        ]

    def poison(self, name: str) -> None:
        """Fills every cell with one of the `POISONS`, and from now on every slot that is freed."""
        self._poison = POISONS[name]
        for slabs, constant in zip((self.keys, self.values), self._poison, strict=True):
            for slab in slabs:
                slab.fill_(constant)

    def row_of(self, slot: int) -> int:
        """The row of the slabs in which a slot stands."""
        return slot

    def storage(self, slot: int) -> tuple[tuple[int, int, int], ...]:
        """The memory of a slot's K and V: (slab, first byte, end byte) of each; none unless `shadow` was called.

        Slabs are numbered by the memory they lie in, so that two that were views of one would have one number.
        """
        if not self.tags:
            return ()
        row = self.row_of(slot)
        allocations: dict[int, int] = {}
        ranges = []
        for slab in (*self.keys, *self.values):
            base = slab.untyped_storage().data_ptr()
            view = slab[row]
            first = view.data_ptr() - base
            ranges.append((allocations.setdefault(base, len(allocations)), first, first + view.nbytes))
        return tuple(ranges)

    def begin(self, slot: int) -> None:
        """A new owner moves in: nothing in the slot is its own."""
        self.generations[slot] += 1
        self.lengths[slot] = 0

    def end(self, slot: int) -> None:
        """The owner leaves. Its cells stay as they are until they are overwritten."""
        self.lengths[slot] = 0

    def scrub(self, slot: int) -> None:
        """Fills a freed slot with the poison; without one, its cells stay as they are."""
        if self._poison is not None:
            row = self.row_of(slot)
            for slabs, constant in zip((self.keys, self.values), self._poison, strict=True):
                for slab in slabs:
                    slab[row] = constant

    def grew(self, slot: int, tokens: int) -> None:
        """`tokens` more cells were written."""
        self.lengths[slot] += tokens

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        """Puts K and V [B, H, Q, D] of the written tokens into their cells."""
        # Advanced indices on either side of a slice: the indexed axis comes first, [N, H, D].
        if rows.written is None:
            position = rows.positions[:, 0]
            self.keys[layer][rows.slots, :, position] = keys[:, :, 0]
            self.values[layer][rows.slots, :, position] = values[:, :, 0]
            if rows.tags is not None:
                self.tags[layer][rows.slots, position] = rows.tags
        else:
            row, column, slot, position = rows.written
            self.keys[layer][slot, :, position] = keys[row, :, column]
            self.values[layer][slot, :, position] = values[row, :, column]
            if rows.tags is not None:
                self.tags[layer][slot, position] = rows.tags

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [B, H, T, D] of the rows' slots, the cells behind their lengths included."""
        if rows.tags is not None:
            rows.attended.append(self.tags[layer][rows.slots, : rows.cells])
        # Not `slab[rows.slots, :, :T]`: an advanced index copies the same cells element by element, three times slower.
        keys, values = self.keys[layer][:, :, : rows.cells], self.values[layer][:, :, : rows.cells]
        return keys.index_select(0, rows.slots), values.index_select(0, rows.slots)

    def seen(self, slot: int) -> Cells:
        """What the next query of a slot's owner would see of its own cells; read as the network reads, changing nothing."""
        count, device = self.lengths[slot], self.keys[0].device
        place, where = torch.zeros((1, 1), dtype=torch.int64, device=device), torch.tensor([slot], device=device)
        rows = Rows(place, place + max(count - 1, 0), where, count, last=None, written=None)
        layers = [self.read(layer, rows) for layer in range(len(self.keys))]
        return Cells(tuple(keys[0] for keys, _ in layers), tuple(values[0] for _, values in layers))


class SlotCache:
    """What the network sees as `cache=`: writes each row at its own positions, returns what the rows may see."""

    is_compileable = False

    def __init__(self, store: SlotStore, rows: Rows) -> None:
        self.store = store
        self.rows = rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes K and V [B, H, Q, D] of this forward; returns those of all T cells, [B, H, T, D]."""
        self.store.write(layer_idx, key_states, value_states, self.rows)
        return self.store.read(layer_idx, self.rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Cells before this forward's queries, for networks that build their own causal mask (ALiBi)."""
        return self.rows.cells - self.rows.positions.shape[1]

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """As `get_seq_length`."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """(cells, offset of the first)."""
        return self.rows.cells, 0
