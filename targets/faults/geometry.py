"""Faults of mask and position: the right cells are there, and the wrong ones are seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from targets.decoder import Feed, Rows, Runner
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, request, schedule
from targets.protocol import CheckName, Kind, Step

_ISOLATION = (CheckName.ISOLATION,)
_PADDING_MAX = 4


def behind_the_longest(rows: Rows) -> torch.Tensor:
    """How many positions each row's last query lies behind that of the longest row: int64 [B, 1]."""
    last = rows.positions[:, -1:]
    return last.max() - last


class LongestMaskRunner(Runner):
    """The mask lets every row see as many cells as the longest has. The twin computes the same and adds nothing."""

    mask_to_longest: Probe

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        probe = self.mask_to_longest
        probe.reach()
        behind = behind_the_longest(rows)
        if probe.honest:
            return super().visible(rows, window)
        probe.change(bool(behind.any()))
        cells, queries = self.cell_numbers[: rows.cells], rows.positions[:, None, :, None]
        seen = cells <= queries + behind[:, None, :, None]
        return seen if window is None else seen & (cells > queries - window)


class PaddedRunner(Runner):
    """A short prompt beside a longer one is padded, and its padding is written and counted as its own.

    The twin writes the padding and does not count it, so that it is overwritten before anybody sees it.
    """

    padding_visible: Probe

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        width = max(len(feed.tokens) for feed in feeds)
        self.true_counts = [len(feed.tokens) for feed in feeds]
        padded = [
            feed
            if feed.drafts
            else feed._replace(tokens=(*feed.tokens, *[feed.tokens[-1]] * self._padding(feed.slot, len(feed.tokens), width)))
            for feed in feeds
        ]
        logits = super().forward(padded)
        if self.padding_visible.honest:
            for feed, true in zip(padded, self.true_counts, strict=True):
                self.store.grew(feed.slot, true - len(feed.tokens))
        return logits

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        rows = super().place(feeds, starts)
        if rows.last is not None:
            last = torch.tensor(self.true_counts, device=rows.slots.device) - 1
            rows.last = (rows.last[0], last)
        return rows

    def _padding(self, slot: int, count: int, width: int) -> int:
        """Columns of padding: none for one-token rows, none where the slot has no room to spare."""
        room = len(self.cell_numbers) - self.store.lengths[slot] - count
        if count == 1 or room < 2 * _PADDING_MAX + 16:
            return 0
        self.padding_visible.reach()
        padding = min(width - count, _PADDING_MAX)
        self.padding_visible.change(padding > 0 and not self.padding_visible.honest)
        return padding


class LongestPositionRunner(Runner):
    """In a step of decodes, every row gets the longest row's position. The twin looks and leaves it."""

    position_of_longest: Probe

    def masks(self, rows: Rows) -> dict[str, Any]:
        arguments = super().masks(rows)
        if rows.written is None:
            probe, behind = self.position_of_longest, behind_the_longest(rows)
            probe.reach()
            if not probe.honest:
                probe.change(bool(behind.any()))
                arguments["position_ids"] = rows.positions + behind
        return arguments


class RestartedPositionRunner(Runner):
    """After the prompt, positions start again at 0. The twin goes on from the prompt's length, found the same way."""

    position_restarts: Probe

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prompt_lengths = torch.zeros(len(self.store.lengths), dtype=torch.int64)

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        for feed, start in zip(feeds, starts, strict=True):
            if start == 0:
                self.prompt_lengths[feed.slot] = len(feed.tokens)
        return super().place(feeds, starts)

    def masks(self, rows: Rows) -> dict[str, Any]:
        arguments, probe = super().masks(rows), self.position_restarts
        lengths = self.prompt_lengths.to(rows.slots.device)[rows.slots][:, None]  # [B, 1]
        generated = rows.positions - lengths
        probe.reach()
        if not probe.honest:
            probe.change(bool((generated >= 0).any()))
            arguments["position_ids"] = torch.where(generated >= 0, generated, rows.positions)
        return arguments


FAULTS = (
    Fault(
        name="mask-to-longest",
        group="mask",
        modelled_on="vllm#43990 (tail mask dropped), vllm#936",
        doc="every row's mask is as wide as the longest row: cells behind its length are seen",
        mixins={"runner": LongestMaskRunner},
        smallest={
            Kind.INTERFERENCE: at_once(request((1,), 1), request((1, 2), 1)),
            Kind.LEAK: schedule(request((1, 2), 1), request((3,), 2), Step(), request((4,), 1)),
        },
        checks=(CheckName.ISOLATION, CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE),
        models=PREFILLS_TOGETHER,
    ),
    Fault(
        name="padding-visible",
        group="mask",
        modelled_on="transformers#48256, mlx-vlm#1946",
        doc="a short prompt's padding beside a longer one is kept as part of it",
        mixins={"runner": PaddedRunner},
        smallest={
            Kind.INTERFERENCE: at_once(request((1, 2), 2), request((1, 2, 3), 1)),
            Kind.OWNERSHIP: at_once(request((1, 2), 2), request((1, 2, 3), 1)),
        },
        checks=(CheckName.ISOLATION, CheckName.OWNERSHIP),
        models=PREFILLS_TOGETHER,
    ),
    Fault(
        name="position-of-longest",
        group="position",
        modelled_on="exllamav2#200, transformers#22707",
        doc="in a step of decodes every row gets the longest row's position",
        mixins={"runner": LongestPositionRunner},
        smallest={Kind.INTERFERENCE: at_once(request((1,), 2), request((1, 2), 2))},
        checks=_ISOLATION,
        models=PREFILLS_TOGETHER,
    ),
    Fault(
        name="position-restarts",
        group="position",
        modelled_on="a new turn whose positions restart at 0 (source article)",
        doc="positions start again at 0 behind the prompt",
        mixins={"runner": RestartedPositionRunner},
        smallest={Kind.WRONG_ALONE: at_once(request((1,), 2))},
        checks=_ISOLATION,
        models=PREFILLS_TOGETHER,
    ),
)
