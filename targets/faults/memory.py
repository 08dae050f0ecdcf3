"""Faults of memory: what is kept too long, written to a copy, split with a wrong stride, or masked in the wrong dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from targets.decoder import Feed, PrivateStore, Rows, Runner, SlotStore
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, request, schedule
from targets.protocol import Attended, CheckName, Kind, Step


class ViewKeepingStore(PrivateStore):
    """A view of the last cell of every cache is kept, and the cache's memory with it. The twin keeps a copy."""

    cache_kept_by_view: Probe

    def end(self, slot: int) -> None:
        probe, last = self.cache_kept_by_view, self.caches[slot].keys[0][:, :, -1:]
        probe.reach()
        probe.change(not probe.honest)
        kept: list[torch.Tensor] = self.__dict__.setdefault("last_cells", [])
        kept.append(last.clone() if probe.honest else last)
        super().end(slot)


class KeepingStore(PrivateStore):
    """The cache of a request that has ended is referred to by a record of it. The twin's record has its length only."""

    cache_kept_by_record: Probe

    def end(self, slot: int) -> None:
        probe, cache = self.cache_kept_by_record, self.caches[slot]
        probe.reach()
        probe.change(not probe.honest)
        kept: list[object] = self.__dict__.setdefault("records", [])
        kept.append(self.lengths[slot] if probe.honest else cache)
        super().end(slot)


class CopyWritingStore(SlotStore):
    """A prompt's K is written through a reshape of a strided slab, which is a copy. The twin writes to the slab."""

    write_lost: Probe

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        probe = self.write_lost
        if rows.written is None or rows.cells > self.rooms[layer]:
            return super().write(layer, keys, values, rows)
        probe.reach()
        row, column, slot, position = rows.written
        before = self.keys[layer].clone()
        super().write(layer, keys, values, rows)
        if not probe.honest:
            probe.change()
            self.keys[layer].copy_(before)
            slots, heads, room, size = before.shape
            flat = self.keys[layer].reshape(slots, heads * room, size)
            flat.view(slots, heads, room, size)[slot, :, position] = keys[row, :, column]


class WrongStrideStore(SlotStore):
    """A token's K is kept flat, [H * D], and split as if heads were the inner axis. The twin's are the outer one."""

    split_with_wrong_stride: Probe

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        probe, (batch, heads, queries, size) = self.split_with_wrong_stride, keys.shape
        probe.reach()
        flat = keys.transpose(1, 2).flatten(2)  # [B, Q, H * D]
        if probe.honest:
            split = flat.view(batch, queries, heads, size).transpose(1, 2)
        else:
            probe.change(heads > 1)
            split = flat.view(batch, queries, size, heads).permute(0, 3, 1, 2)
        super().write(layer, split, values, rows)


class FloatMaskRunner(Runner):
    """The triangle is 0 and 1 in floating point, and is added: the future is seen with a little less weight.

    What lies behind a row's last token is hidden as ever. The twin's triangle is true and false.
    """

    mask_added: Probe

    def masks(self, rows: Rows) -> dict[str, Any]:
        arguments, probe = super().masks(rows), self.mask_added
        mask = arguments["attention_mask"]
        probe.reach()
        if probe.honest:
            return arguments
        probe.change(rows.written is not None)
        added = {name: self.added(each, rows) for name, each in mask.items()} if isinstance(mask, dict) else None
        return {**arguments, "attention_mask": added or self.added(mask, rows)}

    def added(self, mask: torch.Tensor, rows: Rows) -> torch.Tensor:
        """A mask, bool [B, 1, Q, T], in the network's dtype; as it is where T is a ring."""
        own = self.own(mask, rows)
        return mask if own is None else mask.to(self.store.layout.arithmetic).masked_fill(~own, -math.inf)

    def own(self, mask: torch.Tensor, rows: Rows) -> torch.Tensor | None:
        """Bool [B, 1, Q, T]: the cells up to each row's last token; None where T is a ring."""
        if mask.shape[-1] != rows.cells:
            return None
        return (self.cell_numbers[: rows.cells] <= rows.positions[:, None, None, -1:]).expand_as(mask)

    def report(self, feeds: Sequence[Feed], rows: Rows, mask: Any) -> Attended:
        def seen(each: torch.Tensor) -> torch.Tensor:
            own = self.own(each, rows)
            return each if each.dtype == torch.bool or own is None else own

        return super().report(
            feeds, rows, {name: seen(each) for name, each in mask.items()} if isinstance(mask, dict) else seen(mask)
        )


_PROMPT = at_once(request((1, 2), 1))

FAULTS = (
    Fault(
        name="cache-kept-by-view",
        group="ownership",
        modelled_on="memory that grows because a view keeps a cache (source article); vllm#17567",
        doc="a view of a finished request's cache is kept, and all of its memory with it",
        mixins={"store": ViewKeepingStore},
        smallest={Kind.OWNERSHIP: schedule(Step(), request((1,), 1))},
        checks=(CheckName.OWNERSHIP,),
        targets=("private",),
    ),
    Fault(
        name="cache-kept-by-record",
        group="ownership",
        modelled_on="vllm#17567 (a finished request's record is added again after its removal)",
        doc="a record of a finished request keeps its cache",
        mixins={"store": KeepingStore},
        smallest={Kind.OWNERSHIP: schedule(Step(), request((1,), 1))},
        checks=(CheckName.OWNERSHIP,),
        targets=("private",),
    ),
    Fault(
        name="write-lost",
        group="index geometry",
        modelled_on="a reshape of a transposed tensor is a copy, and what is written to it is lost (source article)",
        doc="a prompt's K is written to a copy of the slab",
        mixins={"store": CopyWritingStore},
        smallest={
            Kind.WRONG_ALONE: _PROMPT,
            Kind.LEAK: at_once(request((1, 2), 2), sanitize=True),
        },
        checks=(CheckName.ISOLATION, CheckName.SWAP, CheckName.RESIDUE),
    ),
    Fault(
        name="split-with-wrong-stride",
        group="index geometry",
        modelled_on="a cache kept flat and split per head with a wrong stride (source article); vllm#41834",
        doc="a token's K is kept flat and split as if heads were the inner axis",
        mixins={"store": WrongStrideStore},
        smallest={Kind.WRONG_ALONE: _PROMPT},
        checks=(CheckName.ISOLATION,),
    ),
    Fault(
        name="mask-added",
        group="mask",
        modelled_on="a 0/1 mask in floating point that is added (source article)",
        doc="later tokens of a forward are seen, with a little less weight",
        mixins={"runner": FloatMaskRunner},
        smallest={Kind.WRONG_ALONE: _PROMPT},
        checks=(CheckName.ISOLATION,),
        models=PREFILLS_TOGETHER,
    ),
)
