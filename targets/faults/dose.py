"""Dose: a leak whose size is a parameter, and a record of whom it reached.

Not a fault of the bank: a fault is there or not, this one is a scale on which checks are measured. What attention reads in
the first layer is V + share * V of the row before, cell by cell, in the target's own dtype. The rows stand in a ring, so
that the first one is no more immune than the others. Only cells that both rows own are touched, and nothing is stored: a
leak never comes from an earlier owner and never piles up. The first layer's V is a function of a token and its position,
so the neighbours in the record are the only ones whose content comes across.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from targets.decoder import Decoder, Feed, Layout, Parts, Rows, Runner, SlotStore
from targets.models import Plan


class Leaks:
    """What became of the leaks of one replay; call `begin` before each.

    Attributes:
        sources: By victim, the submissions of which something came across: at least one bit of what it read was another.
        tried: Every submission that a leak was meant for. In narrow types a small share may change nothing.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets the replay before."""
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
        owned = self.owned(rows)
        leaked = torch.where(owned, values + self.share * values.roll(1, 0), values)  # [B, H, T, D]
        changed: list[bool] = (leaked != values).flatten(1).any(1).tolist()
        meant: list[bool] = owned.flatten(1).any(1).tolist()
        for row, victim in enumerate(self.serving):
            if meant[row]:
                self.leaks.note(victim, self.serving[row - 1], changed[row])
        return keys, leaked

    def owned(self, rows: Rows) -> torch.Tensor:
        """Bool [B, 1, T, 1]: the cells that the row and the row before both own, and that the row's queries see."""
        cells = torch.arange(rows.cells, device=rows.positions.device)
        ends = rows.positions[:, -1] + 1
        owned = cells < torch.minimum(ends, ends.roll(1))[:, None]
        if self.window is not None:
            owned &= cells > rows.positions[:, :1] - self.window
        return owned[:, None, :, None]


class ServingRunner(Runner):
    """Tells the store whom each row serves."""

    store: LeakingStore

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        self.store.serving = [feed.submission for feed in feeds]
        return super().forward(feeds)


def leaking(share: float, leaks: Leaks, parts: Parts | None = None) -> Parts:
    """A decoder's parts with this leak in them; `leaks` records whom it reached."""
    parts = parts or Parts(decoder=Decoder)
    store = type("LeakingStore", (LeakingStore, parts.store), {"share": share, "leaks": leaks})
    return parts.with_(store=store, runner=type("ServingRunner", (ServingRunner, parts.runner), {}))
