"""PrivateStore: a cache for each request, in memory of its own: [1, H, T, D] a layer.

Isolation is physical. A step gathers its rows into [B, H, T, D], short ones filled up, and new K and V go back to their own.
A cache grows by concatenation, or into room that doubles when it is full; it goes when its request does.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.decoder.store import Store
from targets.models import Plan
from targets.protocol.tags import NEVER

_FIRST_ROOM = 16


@dataclass
class Private:
    """One request's cache: K and V [1, H, room, D] and tags [room] of each layer."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    tags: list[torch.Tensor] = field(default_factory=list)

    def room(self, layer: int) -> int:
        """Cells that are allocated."""
        return self.keys[layer].shape[2]


class PrivateStore(Store):
    """Owns a cache for each slot that has an owner."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.shadowed = False
        self.caches: dict[int, Private] = {}
        self.alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self.renew_null()

    def shadow(self) -> None:
        self.shadowed = True
        self.tags = [torch.empty(0, dtype=torch.int64) for _ in self.plan.layers]
        self.renew_null()

    def poison(self, name: str) -> None:
        super().poison(name)
        self.renew_null()

    def renew_null(self) -> None:
        """A new cache for rows that only fill up a batch: for their one token, so that it never grows."""
        if self.layout.null:
            self.caches[self.null] = self.fresh(1)

    def fresh(self, room: int) -> Private:
        """An empty cache with room for so many cells."""
        cache = Private()
        for layer, plan in enumerate(self.plan.layers):
            for tensors, constant in zip((cache.keys, cache.values), self.fill, strict=True):
                tensors.append(self.allocate(layer, room, constant))
            cache.tags.append(torch.full((cache.room(layer),), NEVER, dtype=torch.int64, device=self.layout.device))
            assert plan.heads == cache.keys[layer].shape[1], "a cache has the heads of its layer"
        return cache

    def allocate(self, layer: int, room: int, constant: float) -> torch.Tensor:
        """New cells of one layer, [1, H, room, D], filled with the dirt (or the poison)."""
        plan, layout = self.plan.layers[layer], self.layout
        cells = torch.full((1, plan.heads, room, plan.head_size), constant, dtype=layout.dtype, device=layout.device)
        self.alive.add(cells)
        self.counts["allocations"] += 1
        return cells

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.caches[slot] = self.fresh(0 if self.layout.growth == "cat" else _FIRST_ROOM)

    def end(self, slot: int) -> None:
        super().end(slot)
        del self.caches[slot]

    def clean(self, place: int, constants: tuple[float, float]) -> None:
        """Nothing: what is private goes with its owner, and a new owner's is new."""

    def storage(self, slot: int) -> tuple[tuple[int, int, int], ...]:
        """As of every store. Allocations are numbered by where they lie among all that slots have."""
        if not self.shadowed:
            return ()
        everything = {
            tensor.untyped_storage().data_ptr(): None
            for _, cache in sorted(self.caches.items())
            for tensor in (*cache.keys, *cache.values)
        }
        numbers = {pointer: number for number, pointer in enumerate(everything)}
        cache = self.caches[slot]
        return tuple(
            (numbers[tensor.untyped_storage().data_ptr()], 0, tensor.untyped_storage().nbytes())
            for tensor in (*cache.keys, *cache.values)
            if tensor.numel()
        )

    def allocated(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.alive)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        tags = rows.tags
        if rows.written is None:
            for row, (slot, position) in enumerate(zip(rows.slots.tolist(), rows.positions[:, 0].tolist(), strict=True)):
                place = slice(row, row + 1)
                self.put(slot, layer, position, keys[place], values[place], None if tags is None else tags[place])
            return
        counts = torch.bincount(rows.written[0], minlength=len(rows.slots)).tolist()
        firsts, start = rows.positions[:, 0].tolist(), 0
        for row, (slot, count) in enumerate(zip(rows.slots.tolist(), counts, strict=True)):
            new = None if tags is None else tags[start : start + count]
            self.put(slot, layer, firsts[row], keys[row : row + 1, :, :count], values[row : row + 1, :, :count], new)
            start += count

    def put(
        self, slot: int, layer: int, first: int, keys: torch.Tensor, values: torch.Tensor, tags: torch.Tensor | None
    ) -> None:
        """K and V [1, H, n, D] of one slot, from position `first` on."""
        cache, end = self.caches[slot], first + keys.shape[2]
        if end > cache.room(layer):
            self.grow(cache, layer, end)
        cache.keys[layer][:, :, first:end] = keys
        cache.values[layer][:, :, first:end] = values
        if tags is not None:
            cache.tags[layer][first:end] = tags

    def grow(self, cache: Private, layer: int, cells: int) -> None:
        """More room for one layer of a cache: as much as is needed by concatenation, or twice as much as there was."""
        room = cache.room(layer)
        more = cells - room if self.layout.growth == "cat" else max(cells, 2 * room) - room
        for tensors, constant in zip((cache.keys, cache.values), self.fill, strict=True):
            tensors[layer] = torch.cat([tensors[layer], self.allocate(layer, more, constant)], dim=2)
            self.alive.add(tensors[layer])
        fresh = torch.full((more,), NEVER, dtype=torch.int64, device=self.layout.device)
        cache.tags[layer] = torch.cat([cache.tags[layer], fresh])
        self.counts["grown"] += 1

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        caches = [self.caches[slot] for slot in rows.slots.tolist()]
        if rows.tags is not None:
            gathered = rows.slots.new_full((len(caches), rows.cells), NEVER)
            for row, cache in enumerate(caches):
                here = min(rows.cells, cache.room(layer))
                gathered[row, :here] = cache.tags[layer][:here]
            rows.attended.append(gathered)
        keys, values = (
            self.gather([cache.keys[layer] for cache in caches], rows.cells, self.fill[0]),
            self.gather([cache.values[layer] for cache in caches], rows.cells, self.fill[1]),
        )
        return keys, values

    def gather(self, tensors: list[torch.Tensor], cells: int, constant: float) -> torch.Tensor:
        """[B, H, cells, D] of tensors [1, H, room, D]: their first cells, and dirt where they have fewer."""
        _, heads, _, size = tensors[0].shape
        whole = tensors[0].new_full((len(tensors), heads, cells, size), constant)
        for row, tensor in enumerate(tensors):
            here = min(cells, tensor.shape[2])
            whole[row, :, :here] = tensor[0, :, :here]
        return whole
