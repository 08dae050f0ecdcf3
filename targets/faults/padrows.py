"""Faults of rows that only fill up a batch: they touch what is somebody's, or are taken for somebody."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from targets.decoder import Feed, Runner
from targets.decoder.runner import NOBODY
from targets.faults.bank import Fault, Probe, at_once, request
from targets.faults.cache import TableStore
from targets.protocol import CheckName, Kind


class NullSlotStore(TableStore):
    """The slot of rows that are nobody's is the first one. The twin's is one of its own."""

    padding_in_slot_zero: Probe

    def table(self) -> torch.Tensor:
        probe, table = self.padding_in_slot_zero, super().table()
        probe.reach()
        if not probe.honest and self.layout.null:
            probe.change()
            table[self.null] = table[0]
        return table


class LeftoverRunner(Runner):
    """Rows that fill up a batch keep the slots that the forward before had in their place. The twin's have none."""

    padding_in_old_slots: Probe

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        logits = super().forward(feeds)
        self.__dict__["slots_before"] = [feed.slot for feed in feeds]
        return logits

    def fill_rows(self, rows: int) -> list[Feed]:
        fill, probe, before = super().fill_rows(rows), self.padding_in_old_slots, self.__dict__.get("slots_before", [])
        for index, slot in enumerate(before[rows : rows + len(fill)]):
            probe.reach()
            if not probe.honest and self.store.lengths[slot] < self.store.layout.positions:
                probe.change()
                fill[index] = Feed(slot, [0], NOBODY)
        return fill


class FirstRowsRunner(Runner):
    """Rows that are nobody's stand first, and results are taken from the first row on. The twin leaves them out."""

    padding_counted: Probe

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        fill, probe = self.fill_rows(len(feeds)), self.padding_counted
        if not fill:
            return super().forward(feeds)
        probe.reach()
        probe.change(not probe.honest)
        logits = super().forward([*fill, *feeds])
        self.store.lengths[self.store.null] = 0
        return logits[len(fill) :] if probe.honest else logits[: len(feeds)]


_PADDED = {"pad_batch": True}
_THREE = (request((1,), 1), request((2,), 1), request((3,), 1))
_FOUR = (request((1,), 2), request((2,), 1), request((3,), 2), request((4,), 2))

FAULTS = (
    Fault(
        name="padding-in-slot-zero",
        group="pad row",
        modelled_on="vllm#36939 (the null block is written, and read as somebody's)",
        doc="rows that fill up a batch write to the first slot",
        mixins={"store": NullSlotStore},
        smallest={
            Kind.INTERFERENCE: at_once(*_THREE),
            Kind.LEAK: at_once(*_THREE, sanitize=True),
        },
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        settings=_PADDED,
    ),
    Fault(
        name="padding-in-old-slots",
        group="pad row",
        modelled_on="vllm#37728 (dummy rows keep the block ids of requests that have finished)",
        doc="rows that fill up a batch write to the slots of those who had their rows before",
        mixins={"runner": LeftoverRunner},
        smallest={
            Kind.INTERFERENCE: at_once(*_FOUR),
            Kind.LEAK: at_once(*_FOUR, sanitize=True),
        },
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        settings=_PADDED,
    ),
    Fault(
        name="padding-counted",
        group="pad row",
        modelled_on="vllm#13418, sglang#18647 (a count is taken from the padded tensor)",
        doc="results are taken from the first row on, where rows that are nobody's stand",
        mixins={"runner": FirstRowsRunner},
        smallest={Kind.LEAK: at_once(*_THREE), Kind.INTERFERENCE: at_once(*_THREE)},
        checks=(CheckName.SWAP, CheckName.ISOLATION),
        settings=_PADDED,
    ),
)
