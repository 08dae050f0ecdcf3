"""Faults of storage: requests, layers or heads that share K and V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from targets.decoder import Feed, Layout, Rows, Runner, SlotStore
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, request
from targets.models import Plan
from targets.protocol import CheckName, Kind

_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE)
_SHARED = (*_LEAKS, CheckName.OWNERSHIP)
_WRONG = (CheckName.ISOLATION,)


def relocated(rows: Rows, table: torch.Tensor) -> Rows:
    """The rows with each slot s standing at table[s]: int64 [S]."""
    written = rows.written
    if written is not None:
        row, column, slot, position = written
        written = (row, column, table[slot], position)
    return replace(rows, slots=table[rows.slots], written=written)


class TableStore(SlotStore):
    """Each slot stands in the row of the slabs that a table says. Faults may change it on top of each other."""

    def table(self) -> torch.Tensor:
        """Where each slot stands: int64 [S]."""
        return torch.arange(len(self.lengths), device=self.keys[0].device)

    def row_of(self, slot: int) -> int:
        return int(self.table()[slot])

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        super().write(layer, keys, values, relocated(rows, self.table()))

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        return super().read(layer, relocated(rows, self.table()))


class OverwrittenStore(TableStore):
    """One row of storage for all slots. The twin turns the slots round: slot s stands in row S-1-s."""

    global_cache_overwritten: Probe

    def table(self) -> torch.Tensor:
        probe, table = self.global_cache_overwritten, super().table()
        probe.reach()
        probe.change(not probe.honest and len(table) > 1)
        return len(table) - 1 - table if probe.honest else torch.zeros_like(table)


class LockedStore(TableStore):
    """One row of storage for all slots; `SerialRunner` is the lock. The twin keeps the lock and shares nothing."""

    global_cache_locked: Probe

    def table(self) -> torch.Tensor:
        probe, table = self.global_cache_locked, super().table()
        probe.reach()
        probe.change(not probe.honest and len(table) > 1)
        return table if probe.honest else torch.zeros_like(table)


class SerialRunner(Runner):
    """One row a forward, as a lock around the cache makes it."""

    def group(self, feeds: Sequence[Feed]) -> list[list[int]]:
        return [[index] for index in range(len(feeds))]


class AppendedStore(TableStore):
    """One cache that everybody's tokens are appended to, and nobody's are ever taken from: it grows.

    All slots share one row and one length. (Started over where the row is full; a real one grows until memory ends.)
    The twin appends to the slot's own row.
    """

    global_cache_appended: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.room = min(2048, plan.positions_max)
        super().__init__(plan, layout if self.global_cache_appended.honest else replace(layout, positions=self.room))

    def begin(self, slot: int) -> None:
        probe = self.global_cache_appended
        probe.reach()
        if probe.honest:
            super().begin(slot)

    def end(self, slot: int) -> None:
        if self.global_cache_appended.honest:
            super().end(slot)

    def grew(self, slot: int, tokens: int) -> None:
        super().grew(slot, tokens)
        if not self.global_cache_appended.honest:
            end = self.lengths[slot] if self.lengths[slot] < self.room // 2 else 0
            self.global_cache_appended.change(any(length != end for length in self.lengths))
            self.lengths = [end] * len(self.lengths)

    def table(self) -> torch.Tensor:
        table = super().table()
        return table if self.global_cache_appended.honest else torch.zeros_like(table)


class ExpandedStore(TableStore):
    """Keeps, for each slot, the slot in whose storage it stands: its own unless its prompt was expanded from another's."""

    expanded_prompt: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.stands_in = torch.arange(len(self.lengths), device=layout.device)

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.stands_in[slot] = slot

    def table(self) -> torch.Tensor:
        return super().table()[self.stands_in]


class ExpandedRunner(Runner):
    """Prompts that begin alike and come in one step are expanded from one: a view of its storage, not a copy.

    A later write through one row's view lands in all of them. With one such prompt a step nothing is shared, which is why
    it works when tried alone. The twin gives each row storage of its own, as `repeat` or `clone` do.
    """

    expanded_prompt: Probe
    store: ExpandedStore

    def run(self, feeds: Sequence[Feed]) -> torch.Tensor:
        first: dict[int, int] = {}
        for feed in feeds:
            if self.store.lengths[feed.slot] == 0:
                self.expanded_prompt.reach()
                source = first.setdefault(feed.tokens[0], feed.slot)
                self.expanded_prompt.change(source != feed.slot and not self.expanded_prompt.honest)
                if not self.expanded_prompt.honest:
                    self.store.stands_in[feed.slot] = self.store.stands_in[source]
        return super().run(feeds)


class ShiftedLayerStore(SlotStore):
    """A layer reads the K and V of the layer below it. The twin reads through the same index, unshifted."""

    layer_off_by_one: Probe

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        probe = self.layer_off_by_one
        probe.reach()
        below = layer if probe.honest else max(layer - 1, 0)
        probe.change(below != layer)
        return super().read(below, rows)


class SharedHeadsStore(SlotStore):
    """Every K,V head holds the last head's content, as heads that are views of one buffer do. The twin copies."""

    heads_share: Probe

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        probe = self.heads_share
        probe.reach()
        if probe.honest:
            keys, values = keys.clone(), values.clone()
        else:
            probe.change(keys.shape[1] > 1)
            keys, values = keys[:, -1:].expand_as(keys), values[:, -1:].expand_as(values)
        super().write(layer, keys, values, rows)


FAULTS = (
    Fault(
        name="global-cache-overwritten",
        group="shared storage",
        modelled_on="an attention module that keeps its cache in itself (source article); mistral.rs#2306",
        doc="all slots share one row of storage: a request's K and V overwrite its neighbours'",
        mixins={"store": OverwrittenStore},
        smallest={
            Kind.LEAK: at_once(request((1,), 1), request((2,), 1)),
            Kind.OWNERSHIP: at_once(request((1,), 2), request((2,), 2), sanitize=True),
        },
        checks=_SHARED,
    ),
    Fault(
        name="global-cache-appended",
        group="shared storage",
        modelled_on="one past_key_values for all, grown by cat (source article); llama.cpp#27148",
        doc="all requests append to one cache and see everything in it",
        mixins={"store": AppendedStore, "runner": SerialRunner},
        smallest={
            Kind.LEAK: at_once(request((1,), 1), request((2,), 1)),
            Kind.OWNERSHIP: at_once(request((1,), 1), request((2,), 2)),
        },
        checks=_SHARED,
    ),
    Fault(
        name="global-cache-locked",
        group="shared storage",
        modelled_on="a lock around the global cache, which makes each forward safe and no request (source article)",
        doc="all slots share one row of storage, and only one row runs at a time",
        mixins={"store": LockedStore, "runner": SerialRunner},
        smallest={
            Kind.LEAK: at_once(request((1,), 2), request((2,), 1)),
            Kind.OWNERSHIP: at_once(request((1,), 2), request((2,), 2), sanitize=True),
        },
        checks=_SHARED,
    ),
    Fault(
        name="expanded-prompt",
        group="shared storage",
        modelled_on="expand where repeat was meant (source article)",
        doc="prompts with the same first token that come in one step share storage",
        mixins={"store": ExpandedStore, "runner": ExpandedRunner},
        smallest={
            Kind.LEAK: at_once(request((1, 2), 1), request((1, 3), 1)),
            Kind.OWNERSHIP: at_once(request((1,), 2), request((1,), 2), sanitize=True),
        },
        checks=_SHARED,
        models=PREFILLS_TOGETHER,
    ),
    Fault(
        name="layer-off-by-one",
        group="index geometry",
        modelled_on="onnxruntime-genai#2140 (one layer type is treated apart)",
        doc="a layer reads the cache of the layer below",
        mixins={"store": ShiftedLayerStore},
        smallest={Kind.WRONG_ALONE: at_once(request((1,), 1))},
        checks=_WRONG,
    ),
    Fault(
        name="heads-share",
        group="index geometry",
        modelled_on="heads split as views of one buffer and updated in place (source article)",
        doc="every K,V head holds the last head's content",
        mixins={"store": SharedHeadsStore},
        smallest={Kind.WRONG_ALONE: at_once(request((1,), 1))},
        checks=_WRONG,
    ),
)
