"""Faults of chunks: a prompt goes through the network in pieces, and one piece is taken for something else."""

from __future__ import annotations

import torch

from targets.decoder import Decoder, Feed, Rows, Runner
from targets.decoder.planner import Planner
from targets.decoder.running import Running
from targets.faults.bank import PREFILLS_TOGETHER, Fault, Probe, at_once, one_after_another, request
from targets.protocol import CheckName, Kind


class OverlappingDecoder(Decoder):
    """A later chunk of a prompt begins a token too early. The twin's begins where the one before it ended."""

    chunk_off_by_one: Probe

    def feeds(self, chosen: list[int]) -> list[Feed]:
        feeds, probe = super().feeds(chosen), self.chunk_off_by_one
        for index, feed in enumerate(feeds):
            running = self.live[feed.submission]
            if 0 < running.fed < len(running.request.prompt):
                probe.reach()
                if not probe.honest:
                    early = running.piece(running.fed - 1, running.share)
                    probe.change(early != list(feed.tokens))
                    feeds[index] = feed._replace(tokens=early)
        return feeds


class DecodingChunkDecoder(Decoder):
    """A chunk of one token is taken for a decode, whose token is its row's last one: somebody else's, or none.

    The twin looks at how much of the prompt was run.
    """

    last_chunk_taken_for_decode: Probe

    def feeds(self, chosen: list[int]) -> list[Feed]:
        feeds, probe, tokens = super().feeds(chosen), self.last_chunk_taken_for_decode, self.batch.tokens()
        for index, (row, feed) in enumerate(zip(chosen, feeds, strict=True)):
            running = self.live[feed.submission]
            if running.share == 1 and 0 < running.fed < len(running.request.prompt):
                probe.reach()
                if not probe.honest:
                    probe.change(tokens[row] != feed.tokens[0])
                    feeds[index] = feed._replace(tokens=[tokens[row]])
        return feeds


class WholePromptPlanner(Planner):
    """A prompt waits until a step's budget has room for all that is left of it: a long one starves.

    The twin gives it what there is.
    """

    budget_starves: Probe

    def share_out(self, named: list[Running]) -> list[Running]:
        running, probe = super().share_out(named), self.budget_starves
        for each in running:
            if each.share < self.due(each):
                probe.reach()
                if not probe.honest:
                    probe.change()
                    each.share = 0
        return [each for each in running if each.share]


class AppendingRunner(Runner):
    """Where several tokens are added to cells that are there, a fault may change what their queries see."""

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        seen = super().visible(rows, window)
        if rows.written is None or rows.cells > self.store.layout.room(window):
            return seen
        starts = rows.positions[:, :1]
        changed = self.appended(rows, self.cell_numbers[: rows.cells])  # bool [B, 1, Q, T]
        if window is not None:
            changed = changed & (self.cell_numbers[: rows.cells] > rows.positions[:, None, :, None] - window)
        return torch.where((starts > 0)[:, None, :, None], changed, seen)

    def appended(self, rows: Rows, cells: torch.Tensor) -> torch.Tensor:
        """Bool [B, 1, Q, T]: the cells that queries behind cells see."""
        return cells <= rows.positions[:, None, :, None]


class FutureRunner(AppendingRunner):
    """Tokens that are added behind others see each other, the later ones as well. The twin's see the earlier ones."""

    future_of_chunk_seen: Probe

    def appended(self, rows: Rows, cells: torch.Tensor) -> torch.Tensor:
        probe = self.future_of_chunk_seen
        probe.reach()
        if probe.honest:
            return super().appended(rows, cells)
        probe.change(bool(((rows.positions[:, :1] > 0) & (rows.positions < rows.positions[:, -1:])).any()))
        return (cells <= rows.positions[:, None, None, -1:]).expand(-1, -1, rows.positions.shape[1], -1)


class TopLeftRunner(AppendingRunner):
    """The triangle begins at the first cell, and not where the chunk does. The twin's begins with the chunk."""

    triangle_top_left: Probe

    def appended(self, rows: Rows, cells: torch.Tensor) -> torch.Tensor:
        probe = self.triangle_top_left
        probe.reach()
        if probe.honest:
            return super().appended(rows, cells)
        probe.change(bool((rows.positions[:, :1] > 0).any()))
        return cells <= (rows.positions - rows.positions[:, :1])[:, None, :, None]


_ISOLATION = (CheckName.ISOLATION,)
_BUDGET = {"step_tokens_max": 4}
_LONG = request((1, 1, 1, 2, 3, 4), 1)

FAULTS = (
    Fault(
        name="chunk-off-by-one",
        group="index geometry",
        modelled_on="a chunk boundary that is off by one (the nearest rival's seeded faults)",
        doc="a later chunk of a prompt begins with the last token of the one before",
        mixins={"decoder": OverlappingDecoder},
        smallest={
            Kind.WRONG_ALONE: at_once(request((1, 1, 1, 2, 3), 1)),
            Kind.INTERFERENCE: at_once(request((1,), 1), request((1, 1, 2, 3), 1)),
        },
        checks=_ISOLATION,
        settings=_BUDGET,
    ),
    Fault(
        name="last-chunk-taken-for-decode",
        group="row state",
        modelled_on="vllm#36917 (a prefill chunk of one token looks like a decode)",
        doc="a last chunk of one token is fed the last token of its row instead",
        mixins={"decoder": DecodingChunkDecoder},
        smallest={
            Kind.WRONG_ALONE: at_once(request((1, 1, 1, 1, 1), 1)),
            Kind.LEAK: one_after_another(request((1,), 1), request((1, 1, 1, 1, 1), 1)),
        },
        checks=(*_ISOLATION, CheckName.SWAP),
        settings=_BUDGET,
    ),
    Fault(
        name="budget-starves",
        group="liveness",
        modelled_on="sglang#36855 (a prompt longer than a chunk never gets on)",
        doc="a prompt waits until a step's budget has room for all of it",
        mixins={"planner": WholePromptPlanner},
        smallest={Kind.STALLED: at_once(request((1, 1, 1, 1, 1), 1))},
        checks=(CheckName.PROGRESS,),
        settings=_BUDGET,
    ),
    Fault(
        name="future-of-chunk-seen",
        group="mask",
        modelled_on="transformers#48297 (no causal mask on one path); a cache part that is all 'allowed' (source article)",
        doc="tokens of a later chunk see the later ones of their own chunk as well",
        mixins={"runner": FutureRunner},
        smallest={
            Kind.WRONG_ALONE: at_once(_LONG),
            Kind.INTERFERENCE: at_once(request((1, 1), 1), request((1, 1, 2, 3), 1)),
        },
        checks=_ISOLATION,
        models=PREFILLS_TOGETHER,
        settings=_BUDGET,
    ),
    Fault(
        name="triangle-top-left",
        group="mask",
        modelled_on="a triangle aligned top left, wrong as soon as 1 < S_q < S_k (source article)",
        doc="a later chunk's triangle begins at the first cell",
        mixins={"runner": TopLeftRunner},
        smallest={
            Kind.WRONG_ALONE: at_once(_LONG),
            Kind.INTERFERENCE: one_after_another(request((1,), 2), request((1, 1), 1)),
        },
        checks=_ISOLATION,
        models=PREFILLS_TOGETHER,
        settings=_BUDGET,
    ),
)
