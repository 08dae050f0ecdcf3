"""Dose: a leak whose size is a parameter, and a record of whom it reached.

Not a fault of the bank: a fault is there or not, this one is a scale on which checks are measured. What attention reads in
the first layer is V + share * V of the row before, cell by cell, in the target's own dtype. The rows stand in a ring, so
that the first one is no more immune than the others. Only cells that both rows own are touched, and nothing is stored: a
leak never comes from an earlier owner and never piles up. The first layer's V is a function of a token and its position,
so the neighbours in the record are the only ones whose content comes across.

Or, of all cells, only one is touched: of one layer, head and position, in K or V. It is moved towards the same cell of the
row before, by a unit in the last place or by a share of the way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from targets.decoder import Decoder, Feed, Layout, Parts, Rows, Runner, SlotStore
from targets.models import Plan

ULP = sys.float_info.min
"""The share that stands for one unit in the last place."""


class Cell(NamedTuple):
    """One cell of every row; layers are counted among those with attention."""

    layer: int
    head: int
    position: int
    is_key: bool


FIRST_CELL = Cell(0, 0, 0, False)


class Leaks:
    """What became of the leaks of one replay; call `begin` before each.

    Attributes:
        cell: The only cell that leaks, for a store that leaks one.
        sources: By victim, the submissions of which something came across: at least one bit of what it read was another.
        tried: Every submission that a leak was meant for. In narrow types a small share may change nothing.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self, cell: Cell = FIRST_CELL) -> None:
        """Forgets the replay before."""
        self.cell = cell
        self.sources: dict[int, set[int]] = {}
        self.tried: set[int] = set()

    @property
    def lost(self) -> set[int]:
        """Submissions whose every leak was rounded away at the point of leaking."""
        return self.tried - self.sources.keys()

    def note(self, victim: int, source: int, changed: bool) -> None:
        """One leak of one forward."""
        self.tried.add(victim)
        if changed:
            self.sources.setdefault(victim, set()).add(source)


class LeakingStore(SlotStore):
    """Attention reads a share of the V of the row before.

    Attributes:
        share: 0 for none, 1 for all of it.
        first: The layer that leaks: the first with attention.
        serving: The submission of each row of the forward that is running.
    """

    share: float
    leaks: Leaks

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.first = plan.attending[0]
        self.window = plan.layers[self.first].window
        self.serving: list[int] = []

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().read(layer, rows)
        if layer != self.first or len(self.serving) < 2:
            return keys, values
        owned = self.owned(rows, self.window)
        leaked = torch.where(owned, values + self.share * values.roll(1, 0), values)  # [B, H, T, D]
        self.note(values, leaked, owned)
        return keys, leaked

    def note(self, own: torch.Tensor, leaked: torch.Tensor, meant: torch.Tensor) -> None:
        """Writes down to whom something came across."""
        changed: list[bool] = (leaked != own).flatten(1).any(1).tolist()
        here: list[bool] = meant.flatten(1).any(1).tolist()
        for row, victim in enumerate(self.serving):
            if here[row]:
                self.leaks.note(victim, self.serving[row - 1], changed[row])

    def owned(self, rows: Rows, window: int | None) -> torch.Tensor:
        """Bool [B, 1, T, 1]: the cells that the row and the row before both own, and that the row's queries see."""
        cells = torch.arange(rows.cells, device=rows.positions.device)
        ends = rows.positions[:, -1] + 1
        owned = cells < torch.minimum(ends, ends.roll(1))[:, None]
        if window is not None:
            owned &= cells > rows.positions[:, :1] - window
        return owned[:, None, :, None]


class CellStore(LeakingStore):
    """Attention reads one cell of each row as if it were nearer to that of the row before."""

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = SlotStore.read(self, layer, rows)
        cell = self.leaks.cell
        if layer != self.plan.attending[cell.layer] or len(self.serving) < 2 or cell.position >= rows.cells:
            return keys, values
        own = keys if cell.is_key else values
        meant = torch.zeros(own.shape[:3], dtype=torch.bool, device=own.device)  # [B, H, T]
        meant[:, cell.head % own.shape[1], cell.position] = True
        meant = meant[..., None] & self.owned(rows, self.plan.layers[layer].window)
        theirs = own.roll(1, 0)
        moved = torch.nextafter(own, theirs) if self.share == ULP else own + self.share * (theirs - own)
        leaked = torch.where(meant, theirs if self.share == 1 else moved, own)
        self.note(own, leaked, meant)
        return (leaked, values) if cell.is_key else (keys, leaked)


class ServingRunner(Runner):
    """Tells the store whom each row serves."""

    store: LeakingStore

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        self.store.serving = [feed.submission for feed in feeds]
        return super().forward(feeds)


def leaking(share: float, leaks: Leaks, parts: Parts | None = None, one_cell: bool = False) -> Parts:
    """A decoder's parts with this leak in them, of all of V or of one cell; `leaks` records whom it reached."""
    parts = parts or Parts(decoder=Decoder)
    leaky = CellStore if one_cell else LeakingStore
    store = type(leaky.__name__, (leaky, parts.store), {"share": share, "leaks": leaks})
    return parts.with_(store=store, runner=type("ServingRunner", (ServingRunner, parts.runner), {}))
