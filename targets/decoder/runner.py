"""Runner: turns rows of unequal length into one padded forward of an unmodified Hugging Face causal LM.

Rows join ragged: a prompt beside one-token decodes. A short row repeats its last token (or the padding id, where there is
one) up to Q, at the same position and under the same mask, so that padding is finite and never special; the copies are not
written and their logits not read.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from targets.decoder.rows import Rows
from targets.decoder.slots import SlotCache
from targets.decoder.states import StateCache, StateStore
from targets.decoder.store import Store
from targets.decoder.trust import Trust
from targets.models import LayerPlan, Plan, logits_of
from targets.protocol import Attended
from targets.protocol.tags import POSITION_SHIFT, pack

CAPTURED = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes for which a forward is captured, where batches are filled up."""
NOBODY = -1
"""The submission of a row that only fills up a batch."""


class Feed(NamedTuple):
    """What a row brings to a forward: its slot, its new tokens, and the request it serves.

    Attributes:
        drafts: So many of the tokens, the last ones, are guesses; whether their cells count is for the decoder to say.
    """

    slot: int
    tokens: Sequence[int]
    submission: int
    drafts: int = 0


class Runner:
    """Runs forwards on one network over one store, and over the recurrent states where the network has any.

    Attributes:
        forwards: Those of this step: the feeds, and how many cells stood before each.
        padding: The id that fills up a short row; None for its own last one.
        trust: Which cells are of low trust.
        leaves_out: Whether the network can be told which columns' logits are wanted.
        behind: By submission, the logits [n, V] behind each of its drafts in the last forward with it.
        reports: What the rows of each forward could see, if the store keeps tags; the decoder takes them away.
        counts: How often a forward was filled up with rows that are nobody's.
    """

    together = False
    """Whether prompts share a forward whatever the settings are."""

    def __init__(self, network: nn.Module, plan: Plan, store: Store, states: StateStore, prefill: str) -> None:
        self.network = network
        self.plan = plan
        self.store = store
        self.states = states
        self.attending = plan.attending
        self.prefill = prefill
        self.forwards: list[tuple[Sequence[Feed], list[int]]] = []
        self.device = store.layout.device
        self.cell_numbers = torch.arange(store.layout.positions, device=self.device)
        self.padding: int | None = None
        self.trust = Trust(store.layout)
        self.behind: dict[int, torch.Tensor] = {}
        self.reports: list[Attended] = []
        self.counts: Counter[str] = Counter()
        self.leaves_out = "logits_to_keep" in inspect.signature(network.forward).parameters

    def run(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """One step: the logits [B, V] behind each row's last token that is no draft, in the order of the feeds."""
        groups = self.group(feeds)
        forward = self.forward if self.plan.continues else self.forward_from_nothing
        if len(groups) == 1:
            return forward(feeds)
        logits: list[torch.Tensor] = [torch.empty(0)] * len(feeds)
        for group in groups:
            for index, row in zip(group, forward([feeds[index] for index in group]), strict=True):
                logits[index] = row
        return torch.stack(logits)

    def group(self, feeds: Sequence[Feed]) -> list[list[int]]:
        """Which feeds share a forward.

        "mixed": all of them. "apart": prompts in one, decodes in another. "alone": each prompt in its own (what ALiBi
        needs, whose mask has columns only, and a recurrent state, which would take in a row's padding: a forward is
        one-token rows or one row's prompt).
        """
        everything = list(range(len(feeds)))
        if self.prefill == "mixed":
            return [everything]
        decodes = [index for index in everything if len(feeds[index].tokens) == 1]
        prompts = [index for index in everything if len(feeds[index].tokens) > 1]
        groups = [[index] for index in prompts] if self.prefill == "alone" else [prompts]
        return [group for group in (*groups, decodes) if group]

    def forward_from_nothing(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """As `forward`, where several tokens can't go on from a state: they go one by one."""
        feed, *others = feeds
        if len(feed.tokens) == 1 or not self.store.lengths[feed.slot]:
            return self.forward(feeds)
        assert not others, "a row of several tokens has a forward of its own"
        *before, last = [feed._replace(tokens=[token]) for token in feed.tokens]
        for one in before:
            self.forward([one])
        return self.forward([last])

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """One forward: logits [B, V] behind each row's last token that is no draft."""
        fill, real = self.fill_rows(len(feeds)), len(feeds)
        feeds = [*feeds, *fill] if fill else feeds
        counts = [len(feed.tokens) for feed in feeds]
        starts = [self.store.lengths[feed.slot] for feed in feeds]
        self.forwards.append((feeds, starts))
        rows = self.place(feeds, starts)
        self.store.locate(rows)
        masks = self.masks(rows)
        if self.store.tags:
            rows.tags = self.tags(feeds, rows)
        logits = self.logits(rows, masks)
        if rows.attended:
            self.reports.append(self.report(feeds, rows, masks["attention_mask"]))
        for feed, count in zip(feeds[:real], counts, strict=False):
            self.store.grew(feed.slot, count - feed.drafts)
        if rows.asked is not None:
            drafted = [feed for feed in feeds if feed.drafts]
            pieces = torch.split(logits[len(feeds) :], [feed.drafts for feed in drafted])
            self.behind.update((feed.submission, piece) for feed, piece in zip(drafted, pieces, strict=True))
        return logits[:real]

    def logits(self, rows: Rows, masks: dict[str, Any]) -> torch.Tensor:
        """Asks the network: logits [B, V] behind each row's last token, or [N, V] of the N that the rows ask for."""
        kept, last = self.kept(rows)
        cache = self.cache(rows)
        output = self.network(input_ids=rows.ids, cache=cache, use_cache=True, **masks, **kept)
        cache.keep()
        logits = logits_of(output)
        return logits[:, 0] if last is None else logits[last]

    def kept(self, rows: Rows) -> tuple[dict[str, Any], tuple[torch.Tensor, torch.Tensor] | None]:
        """The network's argument by which it computes logits of no more columns than are read, and where these then are.

        With a vocabulary of 32,000, the logits of every token of eight prompts take a third of their forward.
        """
        wanted = rows.last if rows.asked is None else rows.asked
        if wanted is None or not self.leaves_out:
            return {}, wanted
        columns, where = torch.unique(wanted[1], return_inverse=True)
        return {"logits_to_keep": columns}, (wanted[0], where)

    def fill_rows(self, rows: int) -> list[Feed]:
        """Rows that are nobody's, up to the next size for which a forward was captured: one token in the null slot each."""
        if not self.store.layout.null:
            return []
        size = next((size for size in CAPTURED if size >= rows), rows)
        self.counts["padded"] += size > rows
        return [Feed(self.store.null, [0], NOBODY)] * (size - rows)

    def cache(self, rows: Rows) -> SlotCache:
        """What the network sees as `cache=`."""
        return StateCache(self.store, rows, self.states) if self.states.slabs else SlotCache(self.store, rows)

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        """Where each token stands: a row's n-th new token at position start + n of its slot.

        A step of decodes only, by far the most frequent, takes the short way: every row has one token, and it is kept.
        """
        slots = [feed.slot for feed in feeds]
        counts = [len(feed.tokens) for feed in feeds]
        batch, width = len(feeds), max(counts)
        if width == 1:
            ids, positions, slots_ = self.on_device([[feed.tokens[0] for feed in feeds], starts, slots])
            return Rows(ids[:, None], positions[:, None], slots_, max(starts) + 1, last=None, written=None)
        padding = [feed.tokens[-1] if self.padding is None else self.padding for feed in feeds]
        padded = [(*feed.tokens, *[pad] * (width - len(feed.tokens))) for feed, pad in zip(feeds, padding, strict=True)]
        places = [
            (*range(start, start + count), *[start + count - 1] * (width - count))
            for start, count in zip(starts, counts, strict=True)
        ]
        ids, positions = self.on_device([list(chain(*padded)), list(chain(*places))])
        slots_, every, last = self.on_device([slots, list(range(batch)), [count - 1 for count in counts]])
        written = self.on_device(
            [
                [row for row, count in enumerate(counts) for _ in range(count)],
                list(chain(*map(range, counts))),
                [slots[row] for row, count in enumerate(counts) for _ in range(count)],
                [start + column for start, count in zip(starts, counts, strict=True) for column in range(count)],
            ]
        )
        return Rows(
            ids.view(batch, width),
            positions.view(batch, width),
            slots_,
            max(start + count for start, count in zip(starts, counts, strict=True)),
            last=(every, last),
            written=(written[0], written[1], written[2], written[3]),
            asked=self.asked(feeds) if any(feed.drafts for feed in feeds) else None,
        )

    def asked(self, feeds: Sequence[Feed]) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the tokens stand behind which logits are wanted, as `Rows.asked` has them."""
        drafts = [(row, len(feed.tokens) - left) for row, feed in enumerate(feeds) for left in range(feed.drafts, 0, -1)]
        known = [(row, len(feed.tokens) - feed.drafts - 1) for row, feed in enumerate(feeds)]
        rows, columns = self.on_device([list(numbers) for numbers in zip(*known, *drafts, strict=True)])
        return rows, columns

    def on_device(self, numbers: list[list[int]]) -> tuple[torch.Tensor, ...]:
        """Equally long lists as int64 tensors, all in one copy to the device, which the host does not wait for."""
        array = np.array(numbers, dtype=np.int64)  # by way of numpy: for prompts, torch.tensor takes twice as long
        if self.device.type == "cpu":
            return torch.from_numpy(array).unbind()
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True).unbind()

    def masks(self, rows: Rows) -> dict[str, Any]:
        """The network's mask and position arguments, in the form its plan asks for."""
        if self.plan.masks == "none":
            return {}
        if self.plan.masks == "columns":
            return {"attention_mask": self.visible(rows, None)[:, 0, -1]}  # bool [B, T]
        if self.plan.masks == "tensor":
            layer = self.plan.layers[self.attending[0]]
            return {"attention_mask": self.weighed(rows, layer), "position_ids": rows.positions}
        layers = dict(zip(self.plan.layer_types, self.plan.layers, strict=True))
        masks = {name: self.weighed(rows, layer) if layer.heads else None for name, layer in layers.items()}
        return {"attention_mask": masks, "position_ids": rows.positions}

    def weighed(self, rows: Rows, layer: LayerPlan) -> torch.Tensor:
        """What a layer's queries see, [B, 1, Q, T]: bool, or in the network's dtype where some of it is of low trust."""
        seen = self.visible(rows, layer.window)
        if layer.chunk is not None:
            seen = seen & self.within(rows, layer.chunk)
        return self.trust.weigh(seen, self.positions_held(rows, layer.window), rows) if self.trust.ranges else seen

    def within(self, rows: Rows, chunk: int) -> torch.Tensor:
        """Bool [B, 1, Q, T]: the cells whose positions are in a query's own chunk."""
        return self.positions_held(rows, None) // chunk == rows.positions[:, None, :, None] // chunk

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        """Bool [B, 1, Q, T]: a query sees the cells up to its own position, the last `window` of them."""
        held, queries = self.positions_held(rows, window), rows.positions[:, None, :, None]
        seen = held <= queries if rows.cells <= self.store.layout.room(window) else (held >= 0) & (held <= queries)
        return seen if window is None else seen & (held > queries - window)

    def positions_held(self, rows: Rows, window: int | None) -> torch.Tensor:
        """The position that each cell holds: int64 [T], its own number.

        Where the cells of a windowed layer are a ring that some row has filled, T is the ring, and a cell holds the last
        position that came round to it, [B, 1, 1, T]; of one that its owner never reached, that is below zero.
        """
        room = self.store.layout.room(window)
        if rows.cells <= room:
            return self.cell_numbers[: rows.cells]
        last = rows.positions[:, None, None, -1:]  # [B, 1, 1, 1]
        return last - (last - self.cell_numbers[:room]) % room

    def tags(self, feeds: Sequence[Feed], rows: Rows) -> torch.Tensor:
        """The shadow tags, int64 [N], of the N tokens that this forward writes."""
        owned = [
            0 if feed.submission == NOBODY else pack(feed.submission, self.store.generations[feed.slot]) for feed in feeds
        ]
        (owners,) = self.on_device([owned])  # [B]
        if rows.written is None:
            return owners + (rows.positions[:, 0] << POSITION_SHIFT)
        row, column, _, _ = rows.written
        return owners[row] + (rows.positions[row, column] << POSITION_SHIFT)

    def report(self, feeds: Sequence[Feed], rows: Rows, mask: Any) -> Attended:
        """What each row's last query could see: the cells that each layer read, under the mask that the network had.

        A ring and all cells differ in number: layers are brought to one T with cells that nobody sees.
        """
        masks = mask if isinstance(mask, dict) else {"all": mask}
        names = self.plan.layer_types if isinstance(mask, dict) else ("all",) * len(self.plan.layers)
        real = [index for index, feed in enumerate(feeds) if feed.submission != NOBODY]
        visible = {name: self.of_last_query(each, rows) for name, each in masks.items() if each is not None}  # [B, T] each
        shown: list[tuple[int, str, torch.Tensor]] = []
        for layer, tags in zip(self.attending, rows.attended, strict=True):
            name = names[layer]
            if not any(name == other and torch.equal(tags, same) for _, other, same in shown):
                shown.append((layer, name, tags))

        def whole(cells: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(cells, (0, rows.cells - cells.shape[1]))[real]

        return Attended(
            submissions=tuple(feeds[index].submission for index in real),
            generations=tuple(self.store.generations[feeds[index].slot] for index in real),
            layers=tuple(layer for layer, _, _ in shown),
            tags=torch.stack([whole(tags) for _, _, tags in shown]),
            visible=torch.stack([whole(visible[name]) for _, name, _ in shown]),
        )

    def of_last_query(self, mask: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Bool [B, T]: what a mask, [B, 1, Q, T] or [B, T], lets the last token of each row see."""
        if mask.dim() == 2:
            return mask
        if self.trust.ranges and mask.dtype is not torch.bool:
            mask = mask > torch.finfo(mask.dtype).min
        return mask[:, 0, 0] if rows.last is None else mask[rows.last[0], 0, rows.last[1]]
