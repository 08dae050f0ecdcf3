"""SlotStore: the K and V of every slot in preallocated slabs, one a layer: [S, H, T, D].

Isolation is logical. A slot's cells 0..length-1 are its owner's; what lies behind is whatever an earlier owner left, and
only the mask keeps it out. Slabs start dirty (finite, at the scale of the data), so that a cell read by mistake shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from targets.models import Plan
from targets.protocol import Cells

_DIRT_KEYS, _DIRT_VALUES = 1.5, -0.75


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
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    cells: int
    last: tuple[torch.Tensor, torch.Tensor] | None
    written: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None


class SlotStore:
    """Owns the slabs and the lengths.

    Attributes:
        keys, values: a slab a layer, [S, H, T, D] each.
        lengths: how many cells of each slot are its owner's.
    """

    def __init__(self, plan: Plan, slots: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        shapes = [(slots, layer.heads, positions, layer.head_size) for layer in plan.layers]
        self.keys = [torch.full(shape, _DIRT_KEYS, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.full(shape, _DIRT_VALUES, dtype=dtype, device=device) for shape in shapes]
        self.lengths = [0] * slots

    def begin(self, slot: int) -> None:
        """A new owner moves in: nothing in the slot is its own."""
        self.lengths[slot] = 0

    def end(self, slot: int) -> None:
        """The owner leaves. Its cells stay as they are until they are overwritten."""
        self.lengths[slot] = 0

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
        else:
            row, column, slot, position = rows.written
            self.keys[layer][slot, :, position] = keys[row, :, column]
            self.values[layer][slot, :, position] = values[row, :, column]

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [B, H, T, D] of the rows' slots, the cells behind their lengths included."""
        return self.keys[layer][rows.slots, :, : rows.cells], self.values[layer][rows.slots, :, : rows.cells]

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
