"""Faults of ring windows: a row's cells are a ring, and the wrong ones are kept or seen once it has come round."""

from __future__ import annotations

from dataclasses import replace

import torch

from targets.decoder import Layout, Rows, Runner, SlotStore
from targets.faults.bank import Fault, Probe, at_once, request
from targets.models import Plan
from targets.protocol import CheckName, Kind, Setting


class RingRunner(Runner):
    """Where some row has filled the ring, a fault may change what is seen of it."""

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        room = self.store.layout.room(window)
        if window is None or rows.cells <= room:
            return super().visible(rows, window)
        return self.of_ring(rows, window, room, super().visible(rows, window))

    def of_ring(self, rows: Rows, window: int, room: int, right: torch.Tensor) -> torch.Tensor:
        """Bool [B, 1, Q, room]; `right` is what should be seen."""
        return right

    def held(self, last: torch.Tensor, room: int) -> torch.Tensor:
        """The position that each cell of a ring holds, below zero for none, when `last` is the newest: [B, 1, 1, room]."""
        return last - (last - self.cell_numbers[:room]) % room


class FullRingRunner(RingRunner):
    """A ring counts as full while fewer cells were written. The twin looks at how many were."""

    ring_taken_for_full: Probe

    def of_ring(self, rows: Rows, window: int, room: int, right: torch.Tensor) -> torch.Tensor:
        probe, queries = self.ring_taken_for_full, rows.positions[:, None, :, None]
        probe.reach()
        if probe.honest:
            return right
        held = self.held(rows.positions[:, None, None, -1:], room)
        seen = (held <= queries) & (held > queries - window)
        probe.change(not torch.equal(seen, right))
        return seen


class FrontRunner(RingRunner):
    """Once a row has come round, it sees the front of its ring, as if the oldest cell stood there.

    The twin starts from the oldest.
    """

    ring_read_from_front: Probe

    def of_ring(self, rows: Rows, window: int, room: int, right: torch.Tensor) -> torch.Tensor:
        probe, last = self.ring_read_from_front, rows.positions[:, None, None, -1:]
        probe.reach()
        if probe.honest:
            return right
        front = (self.cell_numbers[:room] < window).expand_as(right)
        probe.change()
        return torch.where(last >= room, front, right)


class OneMoreRunner(RingRunner):
    """A query sees one cell more than its window, because the comparison is not strict. The twin's is."""

    window_one_more: Probe

    def of_ring(self, rows: Rows, window: int, room: int, right: torch.Tensor) -> torch.Tensor:
        probe, queries = self.window_one_more, rows.positions[:, None, :, None]
        probe.reach()
        if probe.honest:
            return right
        last = rows.positions[:, None, None, -1:]
        held = self.held(last, room)
        seen = torch.where(last >= room, (held <= queries) & (held >= queries - window), right)
        probe.change(not torch.equal(seen, right))
        return seen


class LongestPhaseRunner(RingRunner):
    """All rings of a forward are taken to stand where the longest row's does. The twin looks at each row's own."""

    ring_phase_of_longest: Probe

    def of_ring(self, rows: Rows, window: int, room: int, right: torch.Tensor) -> torch.Tensor:
        probe, last = self.ring_phase_of_longest, rows.positions[:, None, None, -1:]
        probe.reach()
        if probe.honest:
            return right
        behind = last.max() - last
        held = self.held(last.max().expand_as(last), room) - behind
        queries = rows.positions[:, None, :, None]
        seen = (held >= 0) & (held <= queries) & (held > queries - window)
        probe.change(not torch.equal(seen, right))
        return seen


class ShortRingStore(SlotStore):
    """A ring has room for one new token, however many are added at once. The twin has room for all of them."""

    ring_trimmed_for_one: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        probe = self.ring_trimmed_for_one
        probe.reach()
        short = replace(layout, append_max=None if layout.append_max is None else 1)
        probe.change(not probe.honest and short != layout)
        super().__init__(plan, layout if probe.honest else short)


class LongestChunkRunner(Runner):
    """All rows of a forward are taken to be in the longest one's chunk. The twin looks at each row's own."""

    chunk_of_longest: Probe

    def within(self, rows: Rows, chunk: int) -> torch.Tensor:
        probe, right = self.chunk_of_longest, super().within(rows, chunk)
        probe.reach()
        if probe.honest:
            return right
        cells, queries = self.cell_numbers[: rows.cells], rows.positions[:, None, :, None]
        seen = (cells // chunk == queries.amax() // chunk) | (cells == queries)
        probe.change(not torch.equal(seen, right))
        return seen


class RestartingChunkRunner(Runner):
    """Chunks are counted from a forward's first token. The twin counts from the request's."""

    chunk_from_forward: Probe

    def within(self, rows: Rows, chunk: int) -> torch.Tensor:
        probe, right = self.chunk_from_forward, super().within(rows, chunk)
        probe.reach()
        if probe.honest:
            return right
        first = rows.positions[:, None, :1, None]
        cells, queries = self.cell_numbers[: rows.cells], rows.positions[:, None, :, None]
        seen = (cells - first) // chunk == (queries - first) // chunk
        probe.change(not torch.equal(seen, right))
        return seen


_MODELS = ("tiny-mistral", "tiny-gemma3")
_RING: dict[str, Setting] = {"window": "ring", "ring_append_max": 4}
_ISOLATION = (CheckName.ISOLATION,)
_LEAKS = (CheckName.ISOLATION, CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE)
_LONG = request((1,) * 20, 1)
_SHORT = request((1,), 5)

FAULTS = (
    Fault(
        name="ring-taken-for-full",
        group="window",
        modelled_on="transformers#47708 (the ring's start is past % W, also while fewer are held)",
        doc="a short row beside one whose ring has come round sees cells that it never wrote",
        mixins={"runner": FullRingRunner},
        smallest={
            Kind.INTERFERENCE: at_once(_LONG, _SHORT),
            Kind.LEAK: at_once(_LONG, _SHORT, sanitize=True),
        },
        checks=_LEAKS,
        models=_MODELS,
        settings=_RING,
    ),
    Fault(
        name="ring-read-from-front",
        group="window",
        modelled_on="transformers#47911 (past the window, the oldest entries are attended to)",
        doc="a row whose ring has come round sees the front of it",
        mixins={"runner": FrontRunner},
        smallest={Kind.WRONG_ALONE: at_once(request((1, 2, 3, 4, *[1] * 16), 1))},
        checks=_ISOLATION,
        models=_MODELS,
        settings=_RING,
    ),
    Fault(
        name="window-one-more",
        group="window",
        modelled_on="transformers#38046 (>= where > was meant)",
        doc="once a ring has come round, a query sees one cell more than its window",
        mixins={"runner": OneMoreRunner},
        smallest={Kind.WRONG_ALONE: at_once(request((1, 2, 3, 4, *[1] * 16), 1))},
        checks=_ISOLATION,
        models=_MODELS,
        settings=_RING,
    ),
    Fault(
        name="ring-trimmed-for-one",
        group="window",
        modelled_on="mlx-lm#1914 (what is trimmed assumes one new token)",
        doc="several tokens that are added at once overwrite cells that the first of them may see",
        mixins={"store": ShortRingStore},
        smallest={Kind.WRONG_ALONE: at_once(request((1, 2, 3, 4, *[1] * 14), 1))},
        checks=_ISOLATION,
        models=_MODELS,
        settings=_RING,
    ),
    Fault(
        name="ring-phase-of-longest",
        group="window",
        modelled_on="mlx-lm#983 (one write index for rows of unequal length)",
        doc="every row's ring is taken to stand where the longest row's does",
        mixins={"runner": LongestPhaseRunner},
        smallest={
            Kind.INTERFERENCE: at_once(_LONG, _SHORT),
            Kind.LEAK: at_once(_LONG, _SHORT, sanitize=True),
        },
        checks=_LEAKS,
        models=_MODELS,
        settings=_RING,
    ),
    Fault(
        name="chunk-of-longest",
        group="window",
        modelled_on="chunked-local attention in a padded batch: the chunk taken from the longest row (source article)",
        doc="every row is taken to be in the longest row's chunk",
        mixins={"runner": LongestChunkRunner},
        smallest={
            Kind.INTERFERENCE: at_once(request((1,) * 17, 1), request((1, 2), 1)),
            Kind.WRONG_ALONE: at_once(request((1, 2, *[1] * 15), 1)),
        },
        checks=_ISOLATION,
        models=("tiny-llama4",),
    ),
    Fault(
        name="chunk-from-forward",
        group="window",
        modelled_on="chunked-local attention under a cache: the chunk counted from the new tokens (source article)",
        doc="a chunk begins with each forward's first token",
        mixins={"runner": RestartingChunkRunner},
        smallest={
            Kind.WRONG_ALONE: at_once(request((1,), 2)),
            Kind.INTERFERENCE: at_once(request((1,), 1), request((1, 2), 1), step_tokens_max=2),
        },
        checks=_ISOLATION,
        models=("tiny-llama4",),
    ),
)
