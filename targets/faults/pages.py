"""Faults of a slot's pages: which it has, what is copied before it is written, and which cells of them are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from targets.decoder import Feed, Layout, PageStore, Rows, Runner
from targets.faults.bank import Fault, Probe, at_once, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import CheckName, Kind, Request, Step, Submit


class SharedWriteStore(PageStore):
    """A page to which exactly two refer is written without a copy. The twin copies it like every other."""

    copy_skipped_at_two: Probe

    def copies(self, slot: int, first: int) -> bool:
        probe, due = self.copy_skipped_at_two, super().copies(slot, first)
        if due and self.pool.references[self.tables[slot][first // self.size]] == 2:
            probe.reach()
            probe.change(not probe.honest)
            return probe.honest
        return due


class ShortCopyStore(PageStore):
    """Of a page that is copied before it is written, the last cell in use stays behind. The twin copies that as well."""

    copy_one_cell_short: Probe

    def copy(self, slot: int, place: int) -> bool:
        probe, old, last = self.copy_one_cell_short, self.tables[slot][place], (self.lengths[slot] - 1) % self.size
        before = [slab[:, :, last].clone() for slab in (*self.keys, *self.values)]
        tags_before = [tags[:, last].clone() for tags in self.tags]
        done, new = super().copy(slot, place), self.tables[slot][place]
        if new != old:
            probe.reach()
            probe.change(not probe.honest)
            if not probe.honest:
                for slab, cells in zip((*self.keys, *self.values), before, strict=True):
                    slab[:, new, last] = cells[:, new]
                for tags, was in zip(self.tags, tags_before, strict=True):
                    tags[new, last] = was[new]
        return done


class GrowingStore(PageStore):
    """Every forward of a row takes pages for its tokens, whatever room the last page has. The twin fills that first."""

    pages_miscounted: Probe

    def reserve(self, slot: int, first: int, count: int) -> bool:
        probe, before = self.pages_miscounted, len(self.tables[slot])
        if not super().reserve(slot, first, count):
            return False
        probe.reach()
        while not probe.honest and (len(self.tables[slot]) - before) * self.size < count and self.pool.available:
            probe.change()
            if not super().reserve(slot, len(self.tables[slot]) * self.size, 1):
                break
        return True


class ZeroTableStore(PageStore):
    """Where a prompt of a forward was found in part, the tables of those that were not stay at page 0 for it.

    The twin fills in every table.
    """

    tables_of_misses_zero: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.found: dict[int, int] = {}

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        self.found[slot] = super().attach(slot, tokens, salt)
        return self.found[slot]

    def grew(self, slot: int, tokens: int) -> None:
        super().grew(slot, tokens)
        self.found.pop(slot, None)

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        probe, slots = self.tables_of_misses_zero, rows.slots.tolist()
        if rows.table is not None and any(self.found.get(slot) for slot in slots):
            probe.reach()
            misses = [row for row, slot in enumerate(slots) if self.found.get(slot) == 0]
            if misses and not probe.honest:
                probe.change()
                table = rows.table.clone()
                table[misses] = 0
                rows = replace(rows, table=table)
        return super().read(layer, rows)


class WholePageRunner(Runner):
    """A decode sees all cells of its last page: no mask ends inside a page. The twin's mask ends where the row does."""

    page_tail_seen: Probe
    store: PageStore

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        rows = super().place(feeds, starts)
        size, probe = self.store.size, self.page_tail_seen
        if rows.written is None:
            probe.reach()
            ends = [-(-(start + 1) // size) * size for start in starts]
            whole = min(max(ends), len(self.cell_numbers))
            probe.change(
                not probe.honest and any(start + 1 < min(end, whole) for start, end in zip(starts, ends, strict=True))
            )
            rows.cells = rows.cells if probe.honest else whole
        return rows

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        if rows.written is not None or self.page_tail_seen.honest:
            return super().visible(rows, window)
        size, queries = self.store.size, rows.positions[:, None, :, None]
        seen = self.cell_numbers[: rows.cells] < (queries // size + 1) * size
        return seen if window is None else seen & (self.cell_numbers[: rows.cells] > queries - window)


_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE, CheckName.ISOLATION)
_PAGES = ("pages",)
_FIRST = request((1,), 1)
_ANOTHER = Submit(Request(prompt=(1, 2), max_new_tokens=1, sample_of=0))


FAULTS = (
    Fault(
        name="copy-skipped-at-two",
        group="ownership",
        modelled_on="mlc-llm#2615 (a shared node goes on being written), sglang#35270",
        doc="a page to which exactly two refer is written without being copied",
        mixins={"store": SharedWriteStore},
        smallest={Kind.LEAK: at_once(request((1, 2), 2), _ANOTHER, sanitize=True)},
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        targets=_PAGES,
    ),
    Fault(
        name="copy-one-cell-short",
        group="index geometry",
        modelled_on="transformers#30312 (a copy that is not as long as what it stands for)",
        doc="when a page is copied, its last cell in use stays behind",
        mixins={"store": ShortCopyStore},
        smallest={
            Kind.STALE_HIT: one_after_another(_FIRST, request((1, 2), 1)),
            Kind.LEAK: one_after_another(_FIRST, request((1, 2), 1), sanitize=True),
        },
        checks=(*_LEAKS, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="pages-miscounted",
        group="index geometry",
        modelled_on="openvino.genai#574 (the blocks that are needed are miscounted), nano-vllm#66",
        doc="a forward takes pages for all its tokens, though the last page has room for them",
        mixins={"store": GrowingStore},
        smallest={Kind.OWNERSHIP: at_once(request((1,), 3))},
        checks=(CheckName.OWNERSHIP,),
        targets=_PAGES,
    ),
    Fault(
        name="tables-of-misses-zero",
        group="index geometry",
        modelled_on="vllm#7018 (block tables of the misses left as zeros beside a hit)",
        doc="a prompt that was not found reads page 0 where another of its forward was found",
        mixins={"store": ZeroTableStore},
        smallest={Kind.LEAK: schedule(_FIRST, Step(), request((1, 2), 1), request((3,), 1))},
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        targets=_PAGES,
    ),
    Fault(
        name="page-tail-seen",
        group="mask",
        modelled_on="vllm#43990 (whole pages are gathered, and the mask of the tail dropped)",
        doc="a decode sees all cells of its last page",
        mixins={"runner": WholePageRunner},
        smallest={
            Kind.WRONG_ALONE: at_once(_FIRST),
            Kind.LEAK: at_once(_FIRST, sanitize=True),
        },
        checks=_LEAKS,
        targets=_PAGES,
    ),
)
