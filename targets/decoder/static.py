"""Static batches: requests wait until a batch is formed, which runs until all of them have ended; then comes the next.

A batch is a rectangle. Its prompts are filled up to one width, in front (left) or behind (right), and every row writes to
the same column in each forward after that. So a request's positions are not its columns:

    left    . . a b c | d e      a at position 0 and column 2, d at 3 and 5
    right   a b c . . | d e      a at position 0 and column 0, d at 3 and 5

Padding goes through the network and has cells like everything else, and only the mask keeps it out. A row whose request has
ended, or was cancelled, stays in the rectangle until all have: its slot is free, and it goes on with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from targets.decoder.layout import Layout
from targets.decoder.opaque import Opaque
from targets.decoder.rows import Rows
from targets.decoder.runner import NOBODY, Feed, Runner
from targets.decoder.scheduler import Scheduler
from targets.decoder.slots import SlotStore
from targets.models import LayerPlan, Plan
from targets.protocol import Event, Setting
from targets.protocol.tags import NEVER, POSITION_SHIFT, pack


class StaticScheduler(Scheduler):
    """Lets a whole batch in when nobody is left of the one before.

    Attributes:
        bucket_of: The bucket that a waiting submission's prompt is in; those of one bucket share a batch.
        gather_steps: A batch that is not full waits so many steps for more.
        waited: As many it has waited.
    """

    together = True
    bucket_of: Callable[[int], int]
    gather_steps = 0
    waited = 0

    def admit(self, rows: tuple[int, ...] | None) -> list[tuple[int, int]]:
        """The batch of the oldest waiting request, with the next oldest ones of its bucket: (submission, slot) each."""
        if self.owners or not self.queue:
            return []
        bucket = self.bucket_of(self.queue[0])
        batch = [waiting for waiting in self.queue if self.bucket_of(waiting) == bucket][: len(self.free)]
        if len(batch) < len(self.free) and self.waited < self.gather_steps:
            self.waited += 1
            return []
        self.waited = 0
        for submission in batch:
            self.queue.remove(submission)
        return [(submission, self.take(submission)) for submission in batch]


class StaticDecoder(Opaque):
    """The engine with knobs that a static batch has no use for at one value: all of its rows take every step together."""

    scheduler: StaticScheduler

    def __init__(self, parts: Any, network: Any, plan: Plan, settings: Mapping[str, Setting]) -> None:
        fixed: dict[str, Setting] = {"pipelined": False, "step_tokens_max": 0, "prefill": "mixed"}
        super().__init__(parts, network, plan, {**fixed, "admit_max": settings["slots"], **settings})
        self.scheduler.bucket_of = lambda submission: self.store.layout.bucket(len(self.live[submission].request.prompt))
        self.scheduler.gather_steps = int(settings["gather_steps"])
        self.planner.counts.clear()  # no prompt goes in chunks

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Advances the batch."""
        return super().step()


@dataclass(slots=True, kw_only=True)
class PaddedRows(Rows):
    """The rows of a batch that is filled up.

    Attributes:
        columns: int64 [B, Q], the cell of each token.
        queries: int64 [B, Q], the position of each token in its request; below zero for padding.
        held: int64 [B, T], the position that each cell holds; below zero for padding.
    """

    columns: torch.Tensor
    queries: torch.Tensor
    held: torch.Tensor


class StaticStore(SlotStore):
    """A slab in whose rows requests stand as their batch has them; it has room for a full width and full answers.

    Attributes:
        prompts: By slot, as many tokens of its row are prompt.
        width: To which the prompts of the batch are filled up.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.rooms = [2 * layout.positions for _ in plan.layers]
        self.prompts = [0] * layout.slots
        self.width = 0

    def shape(self, layer: LayerPlan) -> tuple[int, ...]:
        return len(self.lengths), 2 * self.layout.positions, 2 * layer.heads, layer.head_size

    def lay_out(self, prompts: Mapping[int, int]) -> None:
        """A batch is formed, of prompts of these lengths, by slot."""
        self.width = self.layout.width(max(prompts.values()))
        for slot, length in prompts.items():
            self.prompts[slot] = length

    def held(self, slots: Sequence[int], columns: int) -> torch.Tensor:
        """The position that each of the first columns holds for the owners of slots, int64 [B, T]; below zero: none."""
        prompts = torch.tensor([self.prompts[slot] for slot in slots], device=self.layout.device)[:, None]
        every = torch.arange(columns, device=self.layout.device)[None]
        behind = every - (self.width - prompts)
        if self.layout.padding_side == "left":
            return behind
        return torch.where(every < prompts, every, torch.where(every < self.width, -1, behind))

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        assert isinstance(rows, PaddedRows), "rows are laid out by a StaticRunner"
        new = torch.cat((keys, values), dim=1).transpose(1, 2).flatten(0, 1)  # [B Q, 2 H, D]
        cells = torch.add(rows.columns, rows.slots[:, None], alpha=self.rooms[layer])
        self.slabs[layer].flatten(0, 1).index_copy_(0, cells.flatten(), new)
        if rows.tags is not None:
            self.tags[layer].view(-1)[cells.flatten()] = rows.tags


class StaticRunner(Runner):
    """Runs a batch: its prompts in one forward, then one token of each row.

    Attributes:
        members: The slots of the batch, those of rows that have ended included.
        idle: These: they go on as nobody's.
    """

    together = True
    store: StaticStore

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cell_numbers = torch.arange(2 * self.store.layout.positions, device=self.device)
        self.members: list[int] = []
        self.idle: list[int] = []
        names = ("batches", "batches_bucketed", "rows_padded_left", "rows_padded_right", "rows_idle")
        self.counts.update(dict.fromkeys(names, 0))

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        if not self.store.lengths[feeds[0].slot]:
            self.form({feed.slot: len(feed.tokens) for feed in feeds})
        busy = {feed.slot for feed in feeds}
        self.idle = [slot for slot in self.members if slot not in busy]
        self.counts["rows_idle"] += len(self.idle)
        return super().forward(feeds)

    def form(self, prompts: Mapping[int, int]) -> None:
        """A batch begins."""
        self.members = list(prompts)
        self.store.lay_out(prompts)
        padded = sum(length < self.store.width for length in prompts.values())
        self.counts["batches"] += 1
        self.counts["batches_bucketed"] += bool(self.store.layout.bucket_tokens)
        self.counts[f"rows_padded_{self.store.layout.padding_side}"] += padded

    def fill_rows(self, rows: int) -> list[Feed]:
        """The rows whose requests have ended."""
        return [Feed(slot, [self.pad], NOBODY) for slot in self.idle]

    @property
    def pad(self) -> int:
        """The id of padding."""
        return self.padding or 0

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        """Where each token stands in the rectangle: its prompts' part, or the next column."""
        slots = [feed.slot for feed in feeds]
        if starts[0]:
            width = 1
            first = self.store.width + starts[0] - self.store.prompts[slots[0]]
            ids = [[feed.tokens[0]] for feed in feeds]
            queries = [[-1 if feed.submission == NOBODY else start] for feed, start in zip(feeds, starts, strict=True)]
        else:
            first, width = 0, self.store.width
            ids = [self.filled(feed.tokens, self.pad) for feed in feeds]
            queries = [self.filled(range(len(feed.tokens)), -1) for feed in feeds]
        places = torch.tensor(queries, device=self.device)
        cells = first + width
        held = self.store.held(slots, cells)
        held[[index for index, feed in enumerate(feeds) if feed.submission == NOBODY]] = -1
        return PaddedRows(
            ids=torch.tensor(ids, device=self.device),
            positions=places.clamp(min=0),
            slots=torch.tensor(slots, device=self.device),
            cells=cells,
            last=None if width == 1 else (torch.arange(len(feeds), device=self.device), self.last(feeds)),
            written=None,
            columns=torch.arange(first, cells, device=self.device).expand(len(feeds), -1),
            queries=places,
            held=held,
        )

    def filled(self, row: Sequence[int], filler: int) -> list[int]:
        """A row of prompt, filled up on the side that the settings say."""
        padding = [filler] * (self.store.width - len(row))
        return [*padding, *row] if self.store.layout.padding_side == "left" else [*row, *padding]

    def last(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """The column of each prompt's last token, int64 [B]."""
        width = self.store.width
        left = self.store.layout.padding_side == "left"
        return torch.tensor([width - 1 if left else len(feed.tokens) - 1 for feed in feeds], device=self.device)

    def weighed(self, rows: Rows, layer: LayerPlan) -> torch.Tensor:
        """As ever, but that padding sees itself: attention to nothing at all is no number, and would get about."""
        assert isinstance(rows, PaddedRows), "rows are laid out by this runner"
        return super().weighed(rows, layer) | self.themselves(rows)[:, None]

    def themselves(self, rows: PaddedRows) -> torch.Tensor:
        """Bool [B, Q, T]: each query's own cell, of padding only."""
        own = self.cell_numbers[: rows.cells] == rows.columns[:, :, None]
        return own & (rows.queries < 0)[:, :, None]

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        assert isinstance(rows, PaddedRows), "rows are laid out by this runner"
        held, queries = self.positions_held(rows, window), rows.queries[:, None, :, None]
        seen = (held >= 0) & (held <= queries)
        return seen if window is None else seen & (held > queries - window)

    def positions_held(self, rows: Rows, window: int | None) -> torch.Tensor:
        assert isinstance(rows, PaddedRows), "rows are laid out by this runner"
        return rows.held[:, None, None]

    def tags(self, feeds: Sequence[Feed], rows: Rows) -> torch.Tensor:
        """Of all cells of the rectangle, int64 [B Q]; padding is nobody's."""
        assert isinstance(rows, PaddedRows), "rows are laid out by this runner"
        owners = [pack(max(feed.submission, 0), self.store.generations[feed.slot]) for feed in feeds]
        tags = torch.tensor(owners, device=self.device)[:, None] + (rows.positions << POSITION_SHIFT)
        return torch.where(rows.queries < 0, NEVER, tags).flatten()
