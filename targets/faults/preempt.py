"""Faults of preemption: what is forgotten, doubled or put elsewhere when a request makes room and comes back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from targets.decoder import Decoder, Feed, Layout, PageStore, Sampler
from targets.decoder.running import UNKNOWN, Running
from targets.decoder.store import Saved
from targets.faults.bank import Fault, Probe, at_once, request
from targets.models import Plan
from targets.protocol import CheckName, Event, Finished, Kind, Reason, Request, Sampling, Submit


class ShortRecomputeDecoder(Decoder):
    """When an answer is computed again, its last token is left out, and the one before it stands there twice.

    The twin takes them all.
    """

    recompute_off_by_one: Probe

    def feeds(self, chosen: list[int]) -> list[Feed]:
        feeds, probe = super().feeds(chosen), self.recompute_off_by_one
        for index, row in enumerate(chosen):
            running, tokens = self.live[self.batch.submissions[row]], list(feeds[index].tokens)
            whole = running.fed + running.share == len(running.request.prompt) + len(running.answer)
            if running.answer and whole and running.share > 1 and tokens[-1] != UNKNOWN:
                probe.reach()
                if not probe.honest:
                    probe.change(tokens[-1] != tokens[-2])
                    feeds[index] = feeds[index]._replace(tokens=[*tokens[:-1], tokens[-2]])
        return feeds


class DecodingDecoder(Decoder):
    """A request that has produced tokens is decoding, also when it comes back and its cells are gone.

    The twin looks at how many cells there are.
    """

    resume_taken_for_decode: Probe

    def begin(self, running: Running, slot: int) -> int:
        moved = running.saved is not None
        cells, probe, whole = super().begin(running, slot), self.resume_taken_for_decode, len(running.tokens()) - 1
        if running.answer and not moved and cells < whole:
            probe.reach()
            if not probe.honest and self.store.reserve(slot, cells, whole - cells):
                probe.change()
                self.store.lengths[slot] = whole
                return whole
        return cells


class StaleRowDecoder(Decoder):
    """A request that comes back takes the last token that its row had for its own. The twin writes its own there."""

    resumed_row_stale: Probe

    def admit(self, rows: tuple[int, ...] | None) -> list[Event]:
        before = self.batch.state[:, 1].copy()
        events, probe = super().admit(rows), self.resumed_row_stale
        for row, submission in enumerate(self.batch.submissions):
            running = self.live[submission]
            if running.answer and not running.launches and running.fed <= self.store.lengths[running.slot or 0]:
                came = any(getattr(event, "submission", None) == submission for event in events)
                if came:
                    probe.reach()
                    if not probe.honest:
                        probe.change(int(before[row]) != running.answer[-1])
                        self.batch.keep(row, int(before[row]))
        return events


class SharedHostStore(PageStore):
    """Two requests that are moved out at once share their place in host memory: the second is written over the first.

    The twin has a place for each.
    """

    host_place_shared: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.moved: Saved | None = None

    def save(self, slot: int) -> Saved:
        saved, probe, first = super().save(slot), self.host_place_shared, self.moved
        probe.reach()
        if first is not None and not probe.honest:
            probe.change()
            cells = min(first.cells, saved.cells)
            for old, new in zip((*first.keys, *first.values), (*saved.keys, *saved.values), strict=True):
                old[:, :cells] = new[:, :cells]
            for old, new in zip(first.tags, saved.tags, strict=True):
                old[:cells] = new[:cells]
        self.moved = saved
        return saved

    def load(self, slot: int, saved: Saved, submission: int) -> bool:
        if saved is self.moved:
            self.moved = None
        return super().load(slot, saved, submission)


class ShiftedStore(PageStore):
    """Cells that are brought back stand one place further on: the last one is lost. The twin puts them where they were.

    (To turn them round would be no bug where all are seen: attention does not ask in which order cells lie.)
    """

    moved_back_one_off: Probe

    def load(self, slot: int, saved: Saved, submission: int) -> bool:
        probe = self.moved_back_one_off
        probe.reach()
        if not probe.honest:
            probe.change(saved.cells > 1)
            keys, values = (
                [torch.cat([cells[:, :1], cells[:, :-1]], dim=1) for cells in each] for each in (saved.keys, saved.values)
            )
            saved = saved._replace(keys=keys, values=values)
        return super().load(slot, saved, submission)


class RaisingDecoder(Decoder):
    """Where there is no page left, the step fails. The twin preempts somebody."""

    pool_empty_raises: Probe

    def preempt(self, running: Running) -> list[Event]:
        probe = self.pool_empty_raises
        probe.reach()
        if probe.honest:
            return super().preempt(running)
        probe.change()
        raise RuntimeError("no free page")


class HopefulStore(PageStore):
    """Nothing is too large for the pool: it may have room one day. The twin asks how many pages there are."""

    oversized_waits: Probe

    def fits(self, tokens: int) -> bool:
        probe, fits = self.oversized_waits, super().fits(tokens)
        probe.reach()
        probe.change(not fits and not probe.honest)
        return fits or not probe.honest


class PromptOnlyDecoder(Decoder):
    """What a request may come to is its prompt: one whose answer outgrows the pool is let in, and preempts itself.

    The twin counts the answer as well.
    """

    answer_not_counted: Probe

    def refusal(self, request: Request) -> str | None:
        why, probe = super().refusal(request), self.answer_not_counted
        probe.reach()
        if why == "more cells than the pool has" and not probe.honest and self.store.fits(len(request.prompt)):
            probe.change()
            return self.sampler.refusal(request)
        return why


class RestartingSampler(Sampler):
    """A request that comes back draws and counts as if its answer began. The twin goes on where it was."""

    sampler_restarts: Probe

    def join(self, submission: int, request: Request, answer: Sequence[int]) -> None:
        probe = self.sampler_restarts
        probe.reached += len(answer) > 0
        probe.change(len(answer) > 0 and not probe.honest)
        super().join(submission, request, answer if probe.honest else ())


class LateAnswerDecoder(Decoder):
    """The answer with which a request ends is what it was given since it came back. The twin's is the whole."""

    answer_since_resume: Probe

    def preempt(self, running: Running) -> list[Event]:
        self._before()[running.submission] = len(running.answer)
        return super().preempt(running)

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        events, probe = super().retire(running, reason), self.answer_since_resume
        before = self._before().pop(running.submission, 0)
        if before:
            probe.reach()
            if not probe.honest:
                probe.change()
                events[0] = Finished(running.submission, reason, tuple(running.answer[before:]))
        return events

    def _before(self) -> dict[int, int]:
        """By request, the tokens that it had when it was preempted last."""
        counts: dict[int, int] = self.__dict__.setdefault("tokens_before", {})
        return counts


_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE, CheckName.ISOLATION)
_ISOLATION = (CheckName.ISOLATION,)
_PAGES = ("pages",)
_TWO = (request((1,), 3), request((2,), 3))
"""In four pages of one cell, the second makes room for the first, with two tokens of its answer."""
_MOVED = {"preempt": "move"}


def _sampled(prompt: tuple[int, ...], new: int) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, sampling=Sampling(temperature=1.0)))


FAULTS = (
    Fault(
        name="recompute-off-by-one",
        group="preempt and resume",
        modelled_on="a recompute that is off by one (the nearest rival's seeded faults), vllm#41411",
        doc="when a preempted request's cells are computed again, the last token of its answer is left out",
        mixins={"decoder": ShortRecomputeDecoder},
        smallest={Kind.INTERFERENCE: at_once(*_TWO, page_size=1, pool_tokens=4)},
        checks=_ISOLATION,
        targets=_PAGES,
    ),
    Fault(
        name="resume-taken-for-decode",
        group="preempt and resume",
        modelled_on="nano-vllm#144 (the phase is inferred from 'has produced tokens')",
        doc="a preempted request goes on decoding behind cells that were not computed again",
        mixins={"decoder": DecodingDecoder},
        smallest={
            Kind.LEAK: at_once(*_TWO, page_size=1, pool_tokens=4),
        },
        checks=_LEAKS,
        targets=_PAGES,
    ),
    Fault(
        name="resumed-row-stale",
        group="preempt and resume",
        modelled_on="vllm#26385 (a resumed request's token row is not refreshed)",
        doc="a request whose cells are moved back goes on from the last token of its row's last owner",
        mixins={"decoder": StaleRowDecoder},
        smallest={Kind.LEAK: at_once(*_TWO, page_size=1, pool_tokens=4)},
        checks=(CheckName.SWAP, CheckName.ISOLATION),
        settings=_MOVED,
        targets=_PAGES,
    ),
    Fault(
        name="host-place-shared",
        group="preempt and resume",
        modelled_on="TensorRT-LLM#9056 (two blocks are offloaded to one host block)",
        doc="the cells of two requests that are moved out lie in one place in host memory",
        mixins={"store": SharedHostStore},
        smallest={Kind.LEAK: at_once(request((1,), 4), request((2,), 4), request((3,), 3), page_size=1, pool_tokens=6)},
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        settings=_MOVED,
        targets=_PAGES,
    ),
    Fault(
        name="moved-back-one-off",
        group="preempt and resume",
        modelled_on="TensorRT-LLM#13124 (a block's number is not its place in the other pool)",
        doc="cells that are moved back stand one place further on",
        mixins={"store": ShiftedStore},
        smallest={Kind.INTERFERENCE: at_once(*_TWO, page_size=1, pool_tokens=4)},
        checks=_ISOLATION,
        settings=_MOVED,
        targets=_PAGES,
    ),
    Fault(
        name="pool-empty-raises",
        group="preempt and resume",
        modelled_on="transformers#43150 (a full pool is an error for everyone)",
        doc="where there is no page left, the step fails",
        mixins={"decoder": RaisingDecoder},
        smallest={Kind.CRASHED: at_once(*_TWO, page_size=1, pool_tokens=4)},
        checks=(CheckName.SURVIVAL,),
        targets=_PAGES,
    ),
    Fault(
        name="oversized-waits",
        group="liveness",
        modelled_on="vllm#39734 (the queue frozen by one request that can never fit)",
        doc="a request with more cells than the pool has is not refused",
        mixins={"store": HopefulStore},
        smallest={Kind.STALLED: at_once(request((1,), 1), pool_tokens=1)},
        checks=(CheckName.PROGRESS,),
        targets=_PAGES,
    ),
    Fault(
        name="answer-not-counted",
        group="liveness",
        modelled_on="vllm#49675 (preempted again and again, 0 tokens a second)",
        doc="a request whose prompt fits the pool and whose answer does not is not refused",
        mixins={"decoder": PromptOnlyDecoder},
        smallest={Kind.STALLED: at_once(request((1,), 2), page_size=1, pool_tokens=1)},
        checks=(CheckName.PROGRESS,),
        targets=_PAGES,
    ),
    Fault(
        name="sampler-restarts",
        group="preempt and resume",
        modelled_on="vllm#29045 (a processor's state is lost on preemption), sglang#20724",
        doc="a preempted request draws its tokens as if its answer began again",
        mixins={"sampler": RestartingSampler},
        smallest={Kind.ECHO: at_once(request((1,), 3), _sampled((2,), 3), page_size=1, pool_tokens=4)},
        checks=(CheckName.ECHO,),
        targets=_PAGES,
    ),
    Fault(
        name="answer-since-resume",
        group="preempt and resume",
        modelled_on="sglang#39645 (a response that is stitched from two generations)",
        doc="a preempted request ends with the part of its answer that came after it",
        mixins={"decoder": LateAnswerDecoder},
        smallest={Kind.BOOKKEEPING: at_once(*_TWO, page_size=1, pool_tokens=4)},
        checks=(CheckName.BOOKKEEPING,),
        targets=_PAGES,
    ),
)
