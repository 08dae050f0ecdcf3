"""Faults of what outlives a target: a fresh one is not as fresh as it looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from targets.decoder import Feed, Runner, SlotStore
from targets.faults.bank import EVERYWHERE, Fault, Probe, at_once, request
from targets.protocol import CheckName, Kind


class KeptCellRunner(Runner):
    """The network keeps the last cell it wrote, and the next target over it starts with that in its first.

    So the same schedule, run twice in one process, gives two answers, and the first one every time in a fresh process. The
    twin keeps the cell and leaves it alone.
    """

    kept_between_runs: Probe
    store: SlotStore

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.untouched = True

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        logits = super().forward(feeds)
        probe, kept, keys, slot = self.kept_between_runs, self.network.__dict__, self.store.keys[0], feeds[0].slot
        probe.reach()
        if self.untouched and "last_cell" in kept and not probe.honest:
            probe.change(bool((keys[slot, :, 0] != kept["last_cell"]).any()))
            keys[slot, :, 0] = kept["last_cell"]
        self.untouched = False
        kept["last_cell"] = keys[slot, :, self.store.lengths[slot] - 1].clone()
        return logits


FAULTS = (
    Fault(
        name="kept-between-runs",
        group="between runs",
        modelled_on="one set of weights, one input, two outputs in one process (source article)",
        doc="the network keeps a cell, and the next target over it reads that",
        mixins={"runner": KeptCellRunner},
        smallest={Kind.LEAK: at_once(request((1,), 2))},
        checks=(CheckName.REPEAT,),
        models=EVERYWHERE,
    ),
)
