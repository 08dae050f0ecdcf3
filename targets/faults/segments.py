"""Faults of packed segments: requests stand behind each other in one row, and only borders and positions keep them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from targets.decoder import Feed, PackedRows, Rows, SegmentRunner
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, request
from targets.protocol import CheckName, Kind


def packed(rows: Rows) -> PackedRows:
    """The rows of a packed forward as such."""
    assert isinstance(rows, PackedRows), "rows are laid out by a SegmentRunner"
    return rows


def firsts(rows: PackedRows) -> torch.Tensor:
    """The first cell of each token's segment in the row of all cells, int64 [N]."""
    sizes = torch.bincount(rows.owners, minlength=len(rows.slots))
    return (sizes.cumsum(0) - sizes)[rows.segments]


class NoMaskRunner(SegmentRunner):
    """A token sees all that stands before it in the row. The twin asks for the segment too."""

    segment_mask_absent: Probe

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        probe, seen, row = self.segment_mask_absent, super().visible(rows, window), packed(rows)
        probe.reach()
        if probe.honest:
            return seen
        own = firsts(row) + row.positions[0]
        everybody = (torch.arange(row.cells, device=self.device) <= own[:, None])[None, None]
        probe.change(not torch.equal(everybody, seen))
        return everybody


class WideBorderRunner(SegmentRunner):
    """A segment's border is a cell too far in front. The twin's is where the segment begins."""

    segment_border_too_wide: Probe

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        probe, seen, row = self.segment_border_too_wide, super().visible(rows, window), packed(rows)
        probe.reach()
        if probe.honest:
            return seen
        before = (torch.arange(row.cells, device=self.device) == firsts(row)[:, None] - 1)[None, None]
        probe.change(bool(before.any()))
        return seen | before


class PositionMaskRunner(SegmentRunner):
    """Positions restart, and the mask compares nothing else: a token sees everybody's cells up to its own position.

    The twin asks for the segment too.
    """

    segment_mask_by_position: Probe

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        probe, seen, row = self.segment_mask_by_position, super().visible(rows, window), packed(rows)
        probe.reach()
        if probe.honest:
            return seen
        everybody = (row.held <= row.positions[0, :, None])[None, None]
        probe.change(not torch.equal(everybody, seen))
        return everybody


class RunningPositionRunner(SegmentRunner):
    """The mask knows the segments, and positions are counted through the whole row. The twin's restart with each segment."""

    segment_positions_run_on: Probe

    def masks(self, rows: Rows) -> dict[str, Any]:
        probe, arguments, row = self.segment_positions_run_on, super().masks(rows), packed(rows)
        probe.reach()
        if not probe.honest:
            through = (firsts(row) + row.positions).clamp(max=self.plan.positions_max - 1)
            probe.change(not torch.equal(through, row.positions))
            arguments["position_ids"] = through
        return arguments


class StaleBorderRunner(SegmentRunner):
    """Segments' lengths are counted on by row, and made anew where somebody comes, but not where somebody leaves.

    Whoever moved up into the row of one that left goes on from the length of that one. The twin counts by whose they are.
    """

    segment_offsets_stale: Probe

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: list[tuple[int, int]] = []

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        probe, lengths = self.segment_offsets_stale, dict(self.known)
        came = any(not start or feed.slot not in lengths for feed, start in zip(feeds, starts, strict=True))
        by_row = [length for _, length in self.known]
        before = starts if came else [lengths[feed.slot] for feed in feeds] if probe.honest else by_row[: len(feeds)]
        probe.reach()
        probe.change(not probe.honest and before != starts)
        self.known = [(feed.slot, length + len(feed.tokens)) for feed, length in zip(feeds, before, strict=True)]
        return super().place(feeds, starts)

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        ends = torch.tensor([length for _, length in self.known], device=self.device).cumsum(0)
        cells = torch.arange(rows.cells, device=self.device)
        return super().visible(replace(packed(rows), owners=torch.bucketize(cells, ends[:-1], right=True)), window)


_TWO = at_once(request((1,), 1), request((2,), 1))
_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE)

FAULTS = (
    Fault(
        name="segment-mask-absent",
        group="packed segments",
        modelled_on="all requests' Q and all caches concatenated into one product, no mask by request (source article)",
        doc="a token sees whatever stands before it in the row",
        mixins={"runner": NoMaskRunner},
        smallest={Kind.LEAK: _TWO},
        checks=_LEAKS,
        models=PREFILLS_TOGETHER,
        targets=("packed",),
    ),
    Fault(
        name="segment-border-too-wide",
        group="packed segments",
        modelled_on="cumulative lengths that are off by one at a border of packed sequences",
        doc="a token also sees the last cell of the segment before its own",
        mixins={"runner": WideBorderRunner},
        smallest={Kind.LEAK: _TWO},
        checks=_LEAKS,
        models=PREFILLS_TOGETHER,
        targets=("packed",),
    ),
    Fault(
        name="segment-mask-by-position",
        group="packed segments",
        modelled_on="a causal mask made from position ids that restart: right positions, wrong mask (source article)",
        doc="a token sees the cells of all segments up to its own position",
        mixins={"runner": PositionMaskRunner},
        smallest={Kind.LEAK: _TWO},
        checks=_LEAKS,
        models=PREFILLS_TOGETHER,
        targets=("packed",),
    ),
    Fault(
        name="segment-positions-run-on",
        group="packed segments",
        modelled_on="right mask, positions not restarted: the model knows that it is at 500 (source article)",
        doc="positions are counted through the whole row; rotary ones show it once an answer goes on",
        mixins={"runner": RunningPositionRunner},
        smallest={Kind.INTERFERENCE: at_once(request((1,), 1), request((1,), 1))},
        checks=(CheckName.ISOLATION,),
        models=("tiny-gpt2", *(name for name in PREFILLS_TOGETHER if name != "tiny-gpt2")),
        targets=("packed",),
    ),
    Fault(
        name="segment-offsets-stale",
        group="packed segments",
        modelled_on="cumulative lengths counted on from step to step, and not rebuilt when a sequence leaves",
        doc="whoever moves up into the row of one that left has its segment's length",
        mixins={"runner": StaleBorderRunner},
        smallest={
            Kind.LEAK: at_once(request((1, 1), 1), request((1,), 2), request((2,), 2)),
            Kind.INTERFERENCE: at_once(request((1,), 1), request((1,), 2), request((1, 1), 2)),
        },
        checks=(*_LEAKS, CheckName.ISOLATION),
        models=PREFILLS_TOGETHER,
        targets=("packed",),
    ),
)
