"""Store: what every KV store has in common, and what one that shares nothing answers.

A store has the K and V of every slot. A slot's first `length` cells are its owner's; what lies behind is whatever chance or
an earlier owner left, finite and at the scale of the data, so that a cell read by mistake shows, and only the mask keeps
it out.

With `shadow`, cells have a twin of tags that is written and read with the very indices that write and read K and V. With
`poison`, the dirt is another constant, and what is freed is filled with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.models import Plan
from targets.protocol import Cells, Pages, Shelved

DIRT = (1.5, -0.75)
"""K and V of a cell that nobody has written."""
POISONS = {"low": (-1.5, -3.0), "high": (3.0, 6.0)}
"""K and V of a poisoned cell, at the scale of tiny networks' own. The signs differ: whatever a query is, under one of the
two it is drawn to such a cell."""


States = tuple[torch.Tensor, ...]
"""The recurrent states of one slot."""


class Saved(NamedTuple):
    """A slot's cells in host memory: K and V [H, n, D] of each layer, and their tags [n] where there are any."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    tags: list[torch.Tensor]
    cells: int


class Store(ABC):
    """K and V by slot.

    Attributes:
        lengths: How many cells of each slot are its owner's.
        generations: How many owners each slot has had.
        tags: Of each layer, in the shape of its cells; empty unless `shadow` was called.
        counts: How often it did what nobody is told otherwise.
        null: The slot of rows that only fill up a batch.
    """

    shares = False
    """Whether requests that begin alike may have cells in common."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.plan = plan
        self.layout = layout
        self.null = layout.slots
        self.lengths = [0] * (layout.slots + layout.null)
        self.generations = [0] * len(self.lengths)
        self.tags: list[torch.Tensor] = []
        self.counts: Counter[str] = Counter()
        self.fill = DIRT
        self.poisoned = False

    # Life of a slot

    def begin(self, slot: int) -> None:
        """A new owner moves in: nothing in the slot is its own."""
        self.generations[slot] += 1
        self.lengths[slot] = 0
        if self.layout.reuse == "zero-on-allocate":
            self.clean(slot, (0.0, 0.0))

    def end(self, slot: int) -> None:
        """The owner leaves. Its cells stay as they are until they are overwritten."""
        self.lengths[slot] = 0

    def scrub(self, place: int) -> None:
        """Fills a freed slot, or page, with the poison, or with zeros where that is the policy; else it stays as it is."""
        if self.poisoned:
            self.clean(place, self.fill)
        elif self.layout.reuse == "zero-on-free":
            self.clean(place, (0.0, 0.0))

    def grew(self, slot: int, tokens: int) -> None:
        """`tokens` more cells were written."""
        self.lengths[slot] += tokens

    @abstractmethod
    def clean(self, place: int, constants: tuple[float, float]) -> None:
        """Fills every cell of a slot, or of a page where there are pages, K and V each with a constant."""

    # Room and sharing: one that shares nothing has room for every slot and never finds anything

    def fits(self, tokens: int) -> bool:
        """Whether a request that comes to so many tokens in all can ever be held."""
        return True

    def spare(self, tokens: int, promised: int) -> int | None:
        """What a request with so many tokens takes, if there is so much beside `promised`; else None."""
        return 0

    def reserve(self, slot: int, first: int, count: int) -> bool:
        """Makes room for `count` cells from `first` on; False where there is none."""
        return True

    def copies(self, slot: int, first: int) -> bool:
        """Whether `reserve` would copy cells, which forwards in flight must have written by then."""
        return False

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        """Gives a slot the cells that others left of the same tokens; returns how many."""
        return 0

    def keep_states(self, slot: int, states: Callable[[int], States]) -> None:
        """A slot's cells end here: where others may go on from, its recurrent `states` are kept for them."""

    def states_of(self, slot: int) -> States | None:
        """The recurrent states behind the cells that a slot was given by `attach`."""
        return None

    def fork(self, slot: int, sibling: int, cells: int) -> int:
        """Gives a slot the first cells of another, to share; returns how many."""
        return 0

    def publish(self, slot: int, tokens: Sequence[int], salt: int | None, leaving: bool) -> None:
        """A slot's cells, which hold these tokens, may be found by others from now on; the last ones when it leaves."""

    def settle(self) -> None:
        """The step is over: what was put off is done."""

    def save(self, slot: int) -> Saved | None:
        """A copy of a slot's cells in host memory; None where the store never has to make room by moving them."""
        return None

    def load(self, slot: int, saved: Saved, submission: int) -> bool:
        """Brings saved cells back into a slot, as the present owner's; False where there is no room for them."""
        return False

    def account(self) -> Pages | None:
        """The pool's account, for a store that has one."""
        return None

    def shelved(self) -> tuple[Shelved, ...]:
        """What requests share and nobody may write to."""
        return ()

    def pages_of(self, slot: int) -> tuple[int, ...]:
        """The pages of a slot."""
        return ()

    # Cells

    def locate(self, rows: Rows) -> None:
        """Notes on the rows whatever `write` and `read` need once a forward rather than once a layer."""

    @abstractmethod
    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        """Puts K and V [B, H, Q, D] of the written tokens into their cells."""

    @abstractmethod
    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [B, H, T, D] of the rows' slots, the cells behind their lengths included."""

    @abstractmethod
    def shadow(self) -> None:
        """From now on, who wrote a cell is written down."""

    def poison(self, name: str) -> None:
        """Fills every cell with one of the `POISONS`, and from now on whatever is freed."""
        self.fill, self.poisoned = POISONS[name], True

    @abstractmethod
    def storage(self, slot: int) -> tuple[tuple[int, int, int], ...]:
        """The memory of a slot's own K and V: (allocation, first byte, end byte); none unless `shadow` was called."""

    @abstractmethod
    def allocated(self) -> int:
        """Bytes of K and V, counted where they were allocated."""

    def seen(self, slot: int) -> Cells:
        """What the next query of a slot's owner would see of its own cells; read as the network reads, changing nothing."""
        rows = self.everything(slot)
        layers = [self.read(layer, rows) for layer in self.plan.attending]
        return Cells(tuple(keys[0] for keys, _ in layers), tuple(values[0] for _, values in layers))

    def everything(self, slot: int) -> Rows:
        """A row that sees all of a slot's own cells, and writes none."""
        count, device = self.lengths[slot], self.layout.device
        place, where = torch.zeros((1, 1), dtype=torch.int64, device=device), torch.tensor([slot], device=device)
        rows = Rows(place, place + max(count - 1, 0), where, count, last=None, written=None)
        self.locate(rows)
        return rows
