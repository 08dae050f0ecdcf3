"""Crossing: an encoder's output that requests with one source share, and a decoder whose cells are each request's own.

A request's prompt is its source. It is encoded when the last token of the prompt has its turn, in one batch with the others
of that forward; then the decoder runs its start token in that token's place, and the answer's tokens after it. So the cell
of the prompt's last token is the decoder's first one, and the tokens before it have none.

The decoder's positions are relative ones in T5: to a query the newest cell is the last column. So rows are read with their
newest cells side by side, and shorter ones have cells that are nobody's in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import EncoderDecoderCache

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.decoder.runner import Feed, Runner
from targets.decoder.shelf import Entry, Shelf
from targets.decoder.slots import SlotCache, SlotStore
from targets.models import Plan
from targets.protocol import Shelved


class SourceStore(SlotStore):
    """Slots whose owners have a source, or a picture, on a shelf that all share."""

    shares = True

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.shelf = Shelf(layout.unused_max)
        self.counts = self.shelf.counts

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        self.shelf.hold(slot, self.source(tokens), salt)
        return 0

    def source(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a prompt that go through the encoder."""
        return tuple(tokens)

    def end(self, slot: int) -> None:
        super().end(slot)
        self.shelf.release(slot)

    def shelved(self) -> tuple[Shelved, ...]:
        return self.shelf.account()

    def allocated(self) -> int:
        return super().allocated() + self.shelf.used_bytes()

    def padded(self, entries: Sequence[Entry], columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the encoder made of these, [B, columns, C], the rest filled; and as many columns as are each one's own."""
        lengths = torch.tensor([len(entry.made()) for entry in entries], device=self.layout.device)
        first = entries[0].made()
        batch = first.new_full((len(entries), columns, first.shape[1]), self.fill[0])
        for row, entry in enumerate(entries):
            batch[row, : len(entry.made())] = entry.made()
        return batch, lengths


class SourceRunner(Runner):
    """Encodes what the rows of a forward look at, each source once."""

    store: SourceStore

    def encode(self, entries: Sequence[Entry]) -> None:
        """Runs the encoder on those sources that it has not seen, in one batch."""
        new = [entry for entry in dict.fromkeys(entries) if entry.features is None]
        if not new:
            return
        width = max(len(entry.content) for entry in new)
        padded = [
            (*entry.content, *[entry.content[-1] if self.padding is None else self.padding] * (width - len(entry.content)))
            for entry in new
        ]
        lengths = torch.tensor([len(entry.content) for entry in new], device=self.device)
        features = self.encoded(torch.tensor(padded, device=self.device), lengths)
        for entry, row in zip(new, features, strict=True):
            self.store.shelf.put(entry, row[: len(entry.content)].clone())

    def encoded(self, sources: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The encoder's output [B, N, C] for sources [B, N], of which the first `lengths` of each row are its own."""
        output: torch.Tensor = self.network(input_ids=sources, lengths=lengths)
        return output

    def looked_at(self, rows: Rows) -> list[Entry]:
        """What each row of a forward looks at."""
        return [self.store.shelf.held[slot] for slot in rows.slots.tolist()]


class CrossingStore(SourceStore):
    """A slot's first cell is that of its prompt's last token; an encoded source stands for all tokens before that one."""

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        entry = self.shelf.hold(slot, self.source(tokens), salt)
        self.lengths[slot] = len(tokens) - 1 if entry.features is not None else 0
        return self.lengths[slot]

    def fork(self, slot: int, sibling: int, cells: int) -> int:
        entry = self.shelf.held[slot] = self.shelf.held[sibling]
        entry.users.append(slot)
        self.lengths[slot] = len(entry.content) - 1 if entry.features is not None else 0
        return self.lengths[slot]

    def before(self, slot: int) -> int:
        """Tokens before a slot's first cell."""
        return len(self.shelf.held[slot].content) - 1

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        columns = torch.arange(rows.cells, device=rows.slots.device) - (rows.cells - 1)
        cells = (rows.positions + columns).clamp(min=0)  # [B, T]
        if rows.tags is not None:
            rows.attended.append(self.tags[layer][rows.slots[:, None], cells])
        keys, values = self.halves(self.slabs[layer][rows.slots[:, None], cells])
        return keys, values


class CrossingRunner(SourceRunner):
    """Runs the decoder on rows of one token each."""

    store: CrossingStore
    network: Any

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """Logits [B, V]; zeros for rows whose prompt has not come to its end."""
        due = []
        for index, feed in enumerate(feeds):
            if self.store.lengths[feed.slot] + len(feed.tokens) > self.store.before(feed.slot):
                due.append(index)
            else:
                self.store.grew(feed.slot, len(feed.tokens))
        logits = torch.zeros((len(feeds), self.plan.vocabulary), dtype=self.store.layout.arithmetic, device=self.device)
        if due:
            ready = [feeds[index] for index in due]
            self.encode([self.store.shelf.held[feed.slot] for feed in ready])
            logits[due] = super().forward(ready)
        return logits

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        """One token a row: the start token, or the last that was answered, at its position in the decoder."""
        ones, positions = [], []
        for feed, start in zip(feeds, starts, strict=True):
            position = start + len(feed.tokens) - 1 - self.store.before(feed.slot)
            ones.append(feed._replace(tokens=[feed.tokens[-1] if position else self.network.start]))
            positions.append(position)
        return super().place(ones, positions)

    def masks(self, rows: Rows) -> dict[str, Any]:
        """The cells of each row's own, which are its last columns."""
        columns = torch.arange(rows.cells, device=self.device) - (rows.cells - 1)
        return {"attention_mask": (rows.positions + columns >= 0)[:, None, None, :]}

    def logits(self, rows: Rows, masks: dict[str, Any]) -> torch.Tensor:
        """Asks the decoder, across from each row's source: logits [B, V]."""
        source, mask = self.across(self.looked_at(rows))
        logits: torch.Tensor = self.network(
            input_ids=rows.ids,
            positions=rows.positions,
            source=source,
            source_mask=mask,
            cache=CrossCache(self.cache(rows)),
            **masks,
        )
        return logits[:, 0]

    def across(self, entries: Sequence[Entry]) -> tuple[torch.Tensor, torch.Tensor]:
        """What each row looks across at, [B, N, C], and what of it is its own: bool [B, N]."""
        columns = max(len(entry.content) for entry in entries)
        source, lengths = self.store.padded(entries, columns)
        return source, torch.arange(columns, device=self.device) < lengths[:, None]


class CrossCache(EncoderDecoderCache):  # type: ignore[misc]
    """What the decoder sees as `cache=`: its own cells are kept; K and V of what it looks across at are made anew."""

    def __init__(self, own: SlotCache) -> None:
        self.self_attention_cache = own
        self.cross_attention_cache = Passing()
        self.is_updated: dict[int, bool] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Cells before this forward's tokens."""
        return self.self_attention_cache.get_seq_length(layer_idx)


class Passing:
    """Keeps nothing."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gives what it is given."""
        return key_states, value_states
