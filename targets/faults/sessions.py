"""Faults of sessions: where a turn's tokens stand that goes on from cells which are there already.

Keys are rotated by position before they are kept, so a turn whose tokens stand too early or too late sees what came before
it at the wrong distance, and leaves cells of its own that are as wrong for whoever goes on from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from targets.decoder import Layout, PageStore, Rows, Runner
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import CheckName, Kind, Step


class TurnStore(PageStore):
    """Knows by how much each slot's positions are off, [S].

    Attributes:
        off: What is added to the positions of what the owner runs.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.off = torch.zeros(len(self.lengths), dtype=torch.int64, device=layout.device)

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.off[slot] = 0


class TurnRunner(Runner):
    """Has positions that are off, as the store says."""

    store: TurnStore

    def masks(self, rows: Rows) -> dict[str, Any]:
        arguments = super().masks(rows)
        moved = rows.positions + self.store.off[rows.slots][:, None]
        arguments["position_ids"] = moved.clamp(0, self.plan.positions_max - 1)
        return arguments


class RestartingStore(TurnStore):
    """A turn that goes on from cells which are there counts its positions from 0 on. The twin goes on from those."""

    second_turn_restarts: Probe

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        cells, probe = super().attach(slot, tokens, salt), self.second_turn_restarts
        if cells:
            probe.reach()
            if not probe.honest:
                probe.change()
                self.off[slot] = -cells
        return cells


class LongMemoryStore(TurnStore):
    """A conversation that is cut and goes on counts its positions from where it had got before.

    The twin counts from where the cells end that are still meant.
    """

    cut_session_keeps_position: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.reached: dict[int, int] = {}

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        cells, probe = super().attach(slot, tokens, salt), self.cut_session_keeps_position
        before = self.reached.get(self.tables[slot][0], 0) if cells else 0
        if before > cells:
            probe.reach()
            if not probe.honest:
                probe.change()
                self.off[slot] = before - cells
        return cells

    def end(self, slot: int) -> None:
        if self.tables[slot]:
            first = self.tables[slot][0]
            self.reached[first] = max(self.lengths[slot], self.reached.get(first, 0))
        super().end(slot)

    def emptied(self, page: int) -> None:
        self.reached.pop(page, None)
        super().emptied(page)


_HITS = (CheckName.WARMTH, CheckName.ISOLATION)

FAULTS = (
    Fault(
        name="second-turn-restarts",
        group="session",
        modelled_on="torchchat#1462 (a turn's start position leaves out what earlier turns have put into the cache)",
        doc="a turn that goes on from cells which are there counts its positions from 0 on",
        mixins={"store": RestartingStore, "runner": TurnRunner},
        smallest={Kind.STALE_HIT: one_after_another(request((1,), 1), request((1, 2), 1))},
        checks=_HITS,
        models=PREFILLS_TOGETHER,
        targets=("pages",),
    ),
    Fault(
        name="cut-session-keeps-position",
        group="session",
        modelled_on="ik_llama.cpp#2459 (a conversation is cut, and its position bounces back to where it was)",
        doc="a turn that goes on from the middle of a conversation counts its positions from where that had got",
        mixins={"store": LongMemoryStore, "runner": TurnRunner},
        smallest={Kind.STALE_HIT: schedule(request((1, 2), 1), Step(), request((1, 3), 1))},
        checks=_HITS,
        models=PREFILLS_TOGETHER,
        targets=("pages",),
    ),
)
