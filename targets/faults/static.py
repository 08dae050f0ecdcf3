"""Faults of static batches: prompts are filled up to one width, and rows that have ended stay in the rectangle.

Some need no neighbour: in a bucket, a request that is alone is filled up as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from targets.decoder import Feed, PaddedRows, Rows, StaticDecoder, StaticRunner, StaticStore
from targets.decoder.running import Running
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, request
from targets.protocol import CheckName, Event, Kind, Reason, Setting

LEARNED = ("tiny-gpt2",)
"""Positions from a table: where a whole request is moved by some, it shows. Rotary ones only know distances."""


class ColumnPositionRunner(StaticRunner):
    """A token's position is its column: whoever is filled up in front stands too far back. The twin's begin at 0."""

    left_pad_in_positions: Probe

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        probe, rows = self.left_pad_in_positions, super().place(feeds, starts)
        probe.reach()
        if not probe.honest:
            probe.change(put_by_column(rows_of(rows), self.plan.positions_max))
        return rows


class WidthPositionRunner(StaticRunner):
    """Answers are counted on from the batch's width, though the prompt ended before. The twin goes on from the prompt."""

    answer_behind_padding: Probe

    def place(self, feeds: Sequence[Feed], starts: list[int]) -> Rows:
        probe, rows = self.answer_behind_padding, super().place(feeds, starts)
        if starts[0]:
            probe.reach()
            if not probe.honest:
                probe.change(put_by_column(rows_of(rows), self.plan.positions_max))
        return rows


class LastColumnRunner(StaticRunner):
    """A prompt's answer is read off the last column, where shorter ones have padding. The twin's is its last token."""

    last_logit_at_pad: Probe

    def last(self, feeds: Sequence[Feed]) -> torch.Tensor:
        probe, last = self.last_logit_at_pad, super().last(feeds)
        probe.reach()
        if probe.honest:
            return last
        probe.change(bool((last != self.store.width - 1).any()))
        return torch.full_like(last, self.store.width - 1)


class SeenPaddingStore(StaticStore):
    """Padding is taken for tokens that were there before all others, and the mask lets it through. The twin's hides it."""

    pads_seen: Probe

    def held(self, slots: Sequence[int], columns: int) -> torch.Tensor:
        probe, held = self.pads_seen, super().held(slots, columns)
        probe.reach()
        if probe.honest:
            return held
        probe.change(bool((held < 0).any()))
        return held.clamp(min=0)


class OldLengthsStore(StaticStore):
    """What a batch is laid out by is kept for its slots, and used for the next one of the same width.

    The twin looks it up and lays out anew.
    """

    old_lengths: Probe

    def lay_out(self, prompts: Mapping[int, int]) -> None:
        probe, kept, width = self.old_lengths, self.prompts.copy(), self.width
        super().lay_out(prompts)
        probe.reach()
        if probe.honest or self.width != width:
            return
        for slot in prompts:
            if kept[slot]:
                probe.change(kept[slot] != self.prompts[slot])
                self.prompts[slot] = kept[slot]


class RowFlagsDecoder(StaticDecoder):
    """Which rows have ended is written down by their numbers, and who stands where changes as they leave.

    The twin writes it down and asks the requests.
    """

    ended_row_stops_another: Probe

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ended: set[int] = set()

    def admit(self, rows: tuple[int, ...] | None) -> list[Event]:
        events = super().admit(rows)
        if events:
            self.ended.clear()
        return events

    def ending(self, running: Running) -> Reason | None:
        probe, reason = self.ended_row_stops_another, super().ending(running)
        row = self.batch.submissions.index(running.submission)
        probe.reach()
        if reason is None and row in self.ended and not probe.honest:
            probe.change()
            return Reason.STOP
        if reason is not None:
            self.ended.add(row)
        return reason


class LateFlagDecoder(StaticDecoder):
    """That a row has ended is seen a step later, while there are others: it speaks once more. The twin looks at once."""

    ended_row_speaks: Probe

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.flagged: set[int] = set()

    def ending(self, running: Running) -> Reason | None:
        probe, reason = self.ended_row_speaks, super().ending(running)
        probe.reach()
        if probe.honest or reason in (None, Reason.CONTEXT) or len(self.live) == 1 or running.submission in self.flagged:
            return reason
        probe.change()
        self.flagged.add(running.submission)
        return None


def rows_of(rows: Rows) -> PaddedRows:
    """The rows of a static batch as such."""
    assert isinstance(rows, PaddedRows), "rows are laid out by a StaticRunner"
    return rows


def put_by_column(rows: PaddedRows, positions_max: int) -> bool:
    """Makes each token's position its column; whether that moved one that is no padding."""
    wrong = rows.columns.clamp(max=positions_max - 1)
    moved = bool((wrong != rows.positions)[rows.queries >= 0].any())
    rows.positions = wrong
    return moved


_LEFT: dict[str, Setting] = {"padding_side": "left", "bucket_tokens": 0}
_RIGHT: dict[str, Setting] = {"padding_side": "right", "bucket_tokens": 0}
_UNEQUAL = at_once(request((1,), 1), request((1, 2), 1))
_LOOKED_AT = at_once(request((1,), 1), request((1, 2), 1), sanitize=True)
_STATIC = ("static",)

FAULTS = (
    Fault(
        name="left-pad-in-positions",
        group="static batch",
        modelled_on="transformers#22707 and its like: batched generate with left padding and no position ids",
        doc="a token's position is its column, and counts the padding in front of it",
        mixins={"runner": ColumnPositionRunner},
        smallest={Kind.INTERFERENCE: _UNEQUAL},
        checks=(CheckName.ISOLATION,),
        models=LEARNED,
        settings=_LEFT,
        targets=_STATIC,
    ),
    Fault(
        name="answer-behind-padding",
        group="static batch",
        modelled_on="an answer's positions counted on from the padded length of its batch (source article)",
        doc="an answer's positions go on from the width of the batch, a shorter prompt's as well",
        mixins={"runner": WidthPositionRunner},
        smallest={Kind.INTERFERENCE: at_once(request((1,), 2), request((1, 2), 1))},
        checks=(CheckName.ISOLATION,),
        models=PREFILLS_TOGETHER,
        settings=_RIGHT,
        targets=_STATIC,
    ),
    Fault(
        name="last-logit-at-pad",
        group="static batch",
        modelled_on="`logits[:, -1]` on a batch that is padded on the right",
        doc="a prompt's answer is read off the last column, where a shorter prompt has padding",
        mixins={"runner": LastColumnRunner},
        smallest={Kind.INTERFERENCE: _UNEQUAL, Kind.LEAK: _LOOKED_AT},
        checks=(CheckName.ISOLATION, CheckName.PROVENANCE, CheckName.RESIDUE),
        models=PREFILLS_TOGETHER,
        settings=_RIGHT,
        targets=_STATIC,
    ),
    Fault(
        name="pads-seen",
        group="static batch",
        modelled_on="generate without an attention mask: padding is attended to (source article)",
        doc="padding is taken for tokens, and seen",
        mixins={"store": SeenPaddingStore},
        smallest={Kind.INTERFERENCE: _UNEQUAL, Kind.LEAK: _LOOKED_AT},
        checks=(CheckName.ISOLATION, CheckName.PROVENANCE, CheckName.RESIDUE),
        models=PREFILLS_TOGETHER,
        settings=_LEFT,
        targets=_STATIC,
    ),
    Fault(
        name="old-lengths",
        group="static batch",
        modelled_on="a bucket's buffers kept from batch to batch, lengths and all",
        doc="a batch of the width of the one before is laid out by the lengths that its slots had then",
        mixins={"store": OldLengthsStore},
        smallest={
            Kind.INTERFERENCE: at_once(request((1, 2), 1), request((1,), 1), slots=1),
            Kind.LEAK: at_once(request((1, 2), 1), request((1,), 1), slots=1, sanitize=True),
        },
        checks=(CheckName.ISOLATION, CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE),
        models=PREFILLS_TOGETHER,
        settings={"bucket_tokens": 4},
        targets=_STATIC,
    ),
    Fault(
        name="ended-row-stops-another",
        group="static batch",
        modelled_on="a tensor of finished flags that is not permuted with the batch",
        doc="whoever moves into the row of one that ended is taken for ended",
        mixins={"decoder": RowFlagsDecoder},
        smallest={Kind.BOOKKEEPING: at_once(request((1,), 1), request((1,), 3))},
        checks=(CheckName.BOOKKEEPING,),
        models=PREFILLS_TOGETHER,
        targets=_STATIC,
    ),
    Fault(
        name="ended-row-speaks",
        group="static batch",
        modelled_on="a finished flag that is looked at before the step's tokens are known",
        doc="while others go on, a request that has ended gets one token more",
        mixins={"decoder": LateFlagDecoder},
        smallest={Kind.BOOKKEEPING: at_once(request((1,), 1), request((1,), 1))},
        checks=(CheckName.BOOKKEEPING,),
        models=PREFILLS_TOGETHER,
        targets=_STATIC,
    ),
)
