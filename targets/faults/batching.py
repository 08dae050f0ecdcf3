"""Faults of batching: what goes wrong only because requests of unequal length, or many cells, meet in one forward."""

from __future__ import annotations

import torch

from targets.decoder import Decoder, Rows, Runner, SlotStore
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, request
from targets.protocol import CheckName, Event, Kind

_HIDDEN_BEYOND = 12
_PADDING_MAX = 4


class UnalignedStore(SlotStore):
    """Rows' cells are put together, each as long as it is: rows of unequal length do not fit. The twin pads them first."""

    unaligned_lengths: Probe

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        probe = self.unaligned_lengths
        probe.reach()
        ends = (rows.positions[:, -1] + 1).tolist()
        keys, values = super().read(layer, rows)
        probe.change(not probe.honest and len(set(ends)) > 1)
        lengths = [rows.cells] * len(ends) if probe.honest else ends
        pieces = [(keys[row, :, :length], values[row, :, :length]) for row, length in enumerate(lengths)]
        return torch.stack([keys for keys, _ in pieces]), torch.stack([values for _, values in pieces])


class ShortMaskRunner(Runner):
    """The mask was made for so many cells: once there are more, old ones are hidden. The twin hides none."""

    mask_too_short: Probe

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        seen, probe = super().visible(rows, window), self.mask_too_short
        probe.reach()
        near = self.cell_numbers[: rows.cells] > rows.positions[:, None, :, None] - _HIDDEN_BEYOND
        if probe.honest:
            return seen
        probe.change(bool((seen & ~near).any()))
        return seen & near


class ScratchStore(SlotStore):
    """A step's new K and V go by way of one scratch cell, which every row of one token has filled before any is read.

    With one row a step it works. The twin has a scratch cell for each row.
    """

    scratch_shared: Probe

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        probe = self.scratch_shared
        if rows.written is None:
            probe.reach()
            if not probe.honest:
                probe.change(len(keys) > 1)
                keys, values = keys[-1:].expand_as(keys), values[-1:].expand_as(values)
        super().write(layer, keys, values, rows)


class PaddingBudgetDecoder(Decoder):
    """A prompt is let in if the padding it makes is within a budget, counted over all that ever ran: a long one starves.

    The twin counts over those that are running, so that the long prompt comes in when they have left.
    """

    padding_starves: Probe

    def admit(self, rows: tuple[int, ...] | None) -> list[Event]:
        probe = self.padding_starves
        lengths: list[int] = self.__dict__.setdefault("lengths_seen", [])
        if probe.honest:
            lengths[:] = [len(self.live[submission].request.prompt) for submission in self.batch.submissions]
        waiting = [submission for submission in self.scheduler.queue if rows is None or submission in rows]
        within = []
        for submission in waiting:
            length = len(self.live[submission].request.prompt)
            probe.reach()
            if sum(max(0, length - other) for other in lengths) <= _PADDING_MAX:
                within.append(submission)
                lengths.append(length)
            elif not probe.honest:
                probe.change()
        return super().admit(tuple(within))


FAULTS = (
    Fault(
        name="unaligned-lengths",
        group="batching",
        modelled_on="'size of tensor a (5) must match tensor b (3)': caches concatenated unaligned (source article)",
        doc="the caches of a batch's rows are put together without padding them to one length",
        mixins={"store": UnalignedStore},
        smallest={Kind.CRASHED: at_once(request((1,), 1), request((1, 2), 1))},
        checks=(CheckName.SURVIVAL,),
        models=PREFILLS_TOGETHER,
    ),
    Fault(
        name="mask-too-short",
        group="mask",
        modelled_on="a mask of fixed size, right until the sequence outgrows it (source article)",
        doc=f"a query sees no cell that is {_HIDDEN_BEYOND} or more positions behind it",
        mixins={"runner": ShortMaskRunner},
        smallest={Kind.WRONG_ALONE: at_once(request((2, *[1] * _HIDDEN_BEYOND), 1))},
        checks=(CheckName.ISOLATION,),
        models=PREFILLS_TOGETHER,  # ALiBi fades so far a cell out by itself
    ),
    Fault(
        name="scratch-shared",
        group="batching",
        modelled_on="threads of one batch on one buffer, right under a lock (source article)",
        doc="the new K and V of a step's one-token rows go by way of one cell, and all rows keep the last row's",
        mixins={"store": ScratchStore},
        smallest={Kind.LEAK: at_once(request((1,), 1), request((2,), 1))},
        checks=(CheckName.SWAP,),
    ),
    Fault(
        name="padding-starves",
        group="liveness",
        modelled_on="a padded batch's budget that counts rows long gone (source article: padding above 70%)",
        doc="a prompt much longer than those before it is never admitted, for the padding it would make",
        mixins={"decoder": PaddingBudgetDecoder},
        smallest={Kind.STALLED: at_once(request((1,), 1), request((1,) * (_PADDING_MAX + 2), 1))},
        checks=(CheckName.PROGRESS,),
    ),
)
