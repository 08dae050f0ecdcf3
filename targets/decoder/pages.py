"""PageStore: K and V in pages of a pool, one slab a layer: [H, N + 1, P, D]; a table says which pages a slot has.

Requests that begin alike refer to the same pages; whoever writes into a page that is not its own alone copies it first. Page
N is nobody's: tables are filled up with it, and rows that only fill up a batch stand in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from targets.decoder.layout import Layout
from targets.decoder.pool import Pool
from targets.decoder.prefix import Entry, PrefixIndex
from targets.decoder.rows import Rows
from targets.decoder.slabs import SlabStore
from targets.decoder.store import Saved, States
from targets.models import LayerPlan, Plan
from targets.protocol import Pages
from targets.protocol.tags import NEVER, SUBMISSION_SHIFT, How, pack, retagged, rewritten

COUNTED = ("hits", "hits_partial", "forked", "copied_on_write", "evicted", "swapped_out", "swapped_in")


class PageStore(SlabStore):
    """Owns the slabs, [H, N + 1, P, D] each, the pool and the tables.

    Attributes:
        tags: A shadow of each layer's slab, int64 [N + 1, P]; empty unless `shadow` was called.
        tables: The pages of each slot, in order.
        chains: Of each slot, what every page holds that is full and published, and of none behind it.
        snapshots: By page, the recurrent states behind its last cell: without them, nobody could go on from it.
    """

    shares = True

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.size, self.none = layout.page_size, layout.pages
        self.index = PrefixIndex(self.size)
        self.pool = Pool(layout.pages, layout.page_order, layout.grouped, self.index, self.emptied)
        self.counts.update(dict.fromkeys(COUNTED, 0))
        self.pool.counts = self.counts
        self.tables: list[list[int]] = [[] for _ in self.lengths]
        self.chains: list[list[Entry]] = [[] for _ in self.lengths]
        self.snapshots: dict[int, States] = {}
        width = -(-layout.positions // self.size) + 1
        self.table = np.full((len(self.lengths), width), self.none, dtype=np.int64)

    def shape(self, layer: LayerPlan) -> tuple[int, ...]:
        return 2, layer.heads, self.layout.pages + 1, self.layout.page_size, layer.head_size

    def halves(self, slab: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = slab.unbind()
        return keys, values

    def at(self, place: int) -> tuple[slice, int]:
        """Of a page: it is pages that are cleaned here."""
        return slice(None), place

    # Pages of a slot

    def begin(self, slot: int) -> None:
        self.generations[slot] += 1
        self.lengths[slot] = 0

    def end(self, slot: int) -> None:
        super().end(slot)
        # The last page first: it is the first to be evicted then, and a page is found only behind the one before it.
        self.pool.release(reversed(self.tables[slot]))
        self.put_table(slot, [])
        self.chains[slot] = []

    def put_table(self, slot: int, pages: list[int]) -> None:
        """Gives a slot these pages."""
        self.tables[slot] = pages
        self.table[slot, : len(pages)] = pages
        self.table[slot, len(pages) :] = self.none

    def scrub(self, place: int) -> None:
        """Nothing: a page is cleaned when it becomes free, which need not be when its owner leaves."""

    def emptied(self, page: int) -> None:
        """A page holds nothing that anybody may find."""
        self.snapshots.pop(page, None)
        super().scrub(page)

    def fits(self, tokens: int) -> bool:
        return -(-tokens // self.size) <= self.layout.pages

    def spare(self, tokens: int, promised: int) -> int | None:
        need = -(-tokens // self.size)
        return need if need <= self.pool.available - promised else None

    def reserve(self, slot: int, first: int, count: int) -> bool:
        if self.copies(slot, first) and not self.copy(slot, first // self.size):
            return False
        table = self.tables[slot]
        while len(table) * self.size < first + count:
            page = self.pool.take()
            if page is None:
                return False
            if self.layout.reuse == "zero-on-allocate":
                self.clean(page, (0.0, 0.0))
            self.table[slot, len(table)] = page
            table.append(page)
        return True

    def copies(self, slot: int, first: int) -> bool:
        if first % self.size == 0:
            return False
        page = self.tables[slot][first // self.size]
        return self.pool.references[page] > 1 or page in self.index

    def copy(self, slot: int, place: int) -> bool:
        """Gives a slot a page of its own in that place of its table; False where there is none and others need the old."""
        old = self.tables[slot][place]
        new = self.pool.take()
        if new is None:
            if self.pool.references[old] > 1:
                return False
            self.index.forget(old)  # nobody else refers to it: better forgotten than kept from growing
            return True
        for slab in (*self.keys, *self.values):
            slab[:, new] = slab[:, old]
        for tags in self.tags:
            tags[new] = rewritten(tags[old], How.COPIED)
        self.tables[slot][place] = self.table[slot, place] = new
        self.pool.release([old])
        self.counts["copied_on_write"] += 1
        return True

    # Sharing

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        """As of every store. At least the last token is left to be run: its logits are wanted."""
        found = self.index.match(tokens[:-1], salt) if self.layout.hits else []
        while self.plan.recurrent and found and (found[-1][1] < self.size or found[-1][0] not in self.snapshots):
            found.pop()
        for page, _ in found:
            self.pool.retain(page)
        self.put_table(slot, [page for page, _ in found])
        self.chains[slot] = [self.index.entries[page] for page, cells in found if cells == self.size]
        self.lengths[slot] = sum(cells for _, cells in found)
        self.counts["hits"] += bool(found)
        self.counts["hits_partial"] += bool(found) and found[-1][1] < self.size
        return self.lengths[slot]

    def keep_states(self, slot: int, states: Callable[[int], States]) -> None:
        cells = self.lengths[slot]
        page = self.tables[slot][cells // self.size - 1] if cells and cells % self.size == 0 else None
        if page is not None and page in self.index and page not in self.snapshots:
            self.snapshots[page] = states(slot)
            self.counts["states_kept"] += 1

    def states_of(self, slot: int) -> States | None:
        cells = self.lengths[slot]
        return self.snapshots[self.tables[slot][cells // self.size - 1]] if cells and self.plan.recurrent else None

    def fork(self, slot: int, sibling: int, cells: int) -> int:
        pages = self.tables[sibling][: -(-cells // self.size)]
        for page in pages:
            self.pool.retain(page)
        self.put_table(slot, list(pages))
        self.chains[slot] = self.chains[sibling][: cells // self.size]
        self.lengths[slot] = cells
        self.counts["forked"] += 1
        return cells

    def publish(self, slot: int, tokens: Sequence[int], salt: int | None, leaving: bool) -> None:
        if not self.layout.hits:
            return
        cells, chain, table = min(self.lengths[slot], len(tokens)), self.chains[slot], self.tables[slot]
        while (len(chain) + 1) * self.size <= cells:
            start, before = len(chain) * self.size, chain[-1] if chain else None
            chain.append(self.index.add(table[len(chain)], before, salt, tuple(tokens[start : start + self.size])))
        start = len(chain) * self.size
        if leaving and start < cells and self.pool.references[table[len(chain)]] == 1:
            self.index.add(table[len(chain)], chain[-1] if chain else None, salt, tuple(tokens[start:cells]))

    def settle(self) -> None:
        self.pool.settle()

    def account(self) -> Pages:
        held = [page for page, count in enumerate(self.pool.references) if count]
        return Pages(
            size=self.size,
            total=self.layout.pages,
            free=tuple(self.pool.free),
            cached=tuple(self.pool.cached),
            references=tuple((page, self.pool.references[page]) for page in held),
        )

    def pages_of(self, slot: int) -> tuple[int, ...]:
        return tuple(self.tables[slot])

    # Cells

    def shadow(self) -> None:
        shape = (self.layout.pages + 1, self.size)
        self.tags = [torch.full(shape, NEVER, dtype=torch.int64, device=self.layout.device) for _ in self.keys]

    def storage(self, slot: int) -> tuple[tuple[int, int, int], ...]:
        """As of every store: the bytes of each head of each page that the slot alone refers to."""
        if not self.tags:
            return ()
        own = [page for page in self.tables[slot] if self.pool.references[page] == 1 and page not in self.index]
        ranges = []
        for number, slab in enumerate((*self.keys, *self.values)):
            head, page = slab.stride(0) * slab.itemsize, slab.stride(1) * slab.itemsize
            ranges += [
                (number, at, at + page) for which in own for at in (h * head + which * page for h in range(len(slab)))
            ]
        return tuple(ranges)

    def locate(self, rows: Rows) -> None:
        width = max(1, -(-rows.cells // self.size))
        rows.table = torch.from_numpy(self.table[rows.slots.cpu().numpy(), :width]).to(self.layout.device)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        assert rows.table is not None, "rows are located before they are written"
        if rows.written is None:
            position = rows.positions[:, 0]
            page = rows.table.gather(1, rows.positions // self.size)[:, 0]
            new_keys, new_values = keys[:, :, 0], values[:, :, 0]
        else:
            row, column, _, position = rows.written
            page = rows.table[row, position // self.size]
            new_keys, new_values = keys[row, :, column], values[row, :, column]
        cell = position % self.size
        self.keys[layer][:, page, cell] = new_keys.transpose(0, 1)  # [H, N, D]
        self.values[layer][:, page, cell] = new_values.transpose(0, 1)
        if rows.tags is not None:
            self.tags[layer][page, cell] = rows.tags

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        if rows.tags is not None:
            assert rows.table is not None, "rows are located before they are read"
            rows.attended.append(self.tags[layer][rows.table].flatten(1)[:, : rows.cells])
        return self.gathered(self.keys[layer], rows), self.gathered(self.values[layer], rows)

    def gathered(self, slab: torch.Tensor, rows: Rows) -> torch.Tensor:
        """[B, H, T, D] of a slab's pages, as the rows' tables name them."""
        assert rows.table is not None, "rows are located before they are read"
        batch, pages = rows.table.shape
        picked = slab.index_select(1, rows.table.flatten())  # [H, B * n, P, D]
        whole = picked.view(slab.shape[0], batch, pages * self.size, slab.shape[3])
        return whole.transpose(0, 1)[:, :, : rows.cells]

    # Host memory

    def save(self, slot: int) -> Saved:
        """A copy of a slot's cells, and of their tags, in host memory."""
        cells, rows = self.seen(slot), self.everything(slot)
        assert rows.table is not None, "rows are located"
        tags = [layer[rows.table].flatten()[: rows.cells].cpu() for layer in self.tags]
        self.counts["swapped_out"] += 1
        return Saved([k.cpu().clone() for k in cells.keys], [v.cpu().clone() for v in cells.values], tags, rows.cells)

    def load(self, slot: int, saved: Saved, submission: int) -> bool:
        """Brings saved cells back into pages of a slot, as the present owner's; False where there is no room for them."""
        if not self.reserve(slot, 0, saved.cells):
            return False
        device = self.layout.device
        rows = self.everything(slot)
        columns = torch.arange(saved.cells, device=device)
        rows = Rows(
            columns[None], columns[None], rows.slots, saved.cells, None, (columns * 0, columns, columns * 0 + slot, columns)
        )
        self.locate(rows)
        owner = pack(submission, self.generations[slot])
        for layer, keys, values in zip(self.plan.attending, saved.keys, saved.values, strict=True):
            if saved.tags:
                tags = saved.tags[layer].to(device)  # others' cells, which it shared, stay theirs
                own = tags >> SUBMISSION_SHIFT == submission
                rows.tags = torch.where(own, retagged(tags, owner, How.SWAPPED_IN), rewritten(tags, How.SWAPPED_IN))
            self.write(layer, keys.to(device)[None], values.to(device)[None], rows)
        self.lengths[slot] = saved.cells
        self.counts["swapped_in"] += 1
        return True
