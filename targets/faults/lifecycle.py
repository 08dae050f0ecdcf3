"""Faults of the life cycle: slots, lengths, streams and queues that outlive or miss an event."""

from __future__ import annotations

from dataclasses import replace

import torch

from targets.decoder import Batch, Decoder, Layout, Sampler, Scheduler, SlotStore
from targets.faults.bank import Fault, Probe, at_once, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import Cancel, CheckName, Emitted, Event, Finished, Kind, Reason, Step


class StaleLengthStore(SlotStore):
    """A slot keeps its length when it changes hands, unless that leaves less than the half of its room.

    (It has twice the room that it should, and so never runs past its end, which would be another bug.) The twin resets it.
    """

    stale_length: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, replace(layout, positions=2 * layout.positions))

    def begin(self, slot: int) -> None:
        self._reset(slot)

    def end(self, slot: int) -> None:
        self._reset(slot)

    def _reset(self, slot: int) -> None:
        probe = self.stale_length
        probe.reach()
        if probe.honest or self.lengths[slot] > self.keys[0].shape[2] // 2:
            self.lengths[slot] = 0
        else:
            probe.change(self.lengths[slot] > 0)


class TwiceFreeingScheduler(Scheduler):
    """Forgives a slot that is released twice, as a list of free slots without a check does."""

    def release(self, slot: int) -> None:
        self.owners.pop(slot, None)
        self.free.append(slot)


class RoomyBatch(Batch):
    """Has room for the rows that share a slot, so that it is not the batch that fails first."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots + 64)


class RoomySampler(Sampler):
    """Has room for them as well."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        super().__init__(rows + 64, vocabulary, device)


class TwiceFreeingDecoder(Decoder):
    """A cancelled request's slot is released by the cancel as well. The twin looks whether it still is held.

    What a forward in flight writes to is held until that has landed.
    """

    cancel_frees_twice: Probe

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        running = self.live.get(submission)
        slot = None if running is None else running.slot
        events = super().cancel(submission, reason)
        if slot is not None and reason is Reason.CANCELLED:
            probe = self.cancel_frees_twice
            probe.reach()
            in_flight = running is not None and running.launches > 0
            if not probe.honest or (self.scheduler.owners.get(slot) == submission and not in_flight):
                probe.change()
                self.scheduler.release(slot)
        return events


class NeverFreeingDecoder(Decoder):
    """A cancelled request leaves the batch and keeps its slot. The twin gives it back a moment later."""

    cancel_never_frees: Probe

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        running = self.live.get(submission)
        if running is None or running.slot is None or reason is not Reason.CANCELLED:
            return super().cancel(submission, reason)
        probe, slot = self.cancel_never_frees, running.slot
        probe.reach()
        self.leave(submission)
        self.store.end(slot)
        if probe.honest:
            self.scheduler.release(slot)
        probe.change(not probe.honest)
        del self.live[submission]
        return [Finished(submission, reason, tuple(running.answer))]


class LosingDecoder(Decoder):
    """The token on which a request ends is in its answer and not in its stream. The twin streams it."""

    token_lost_on_finish: Probe

    def deliver(self, chosen: list[int], logits: torch.Tensor, greedy: list[int]) -> list[Event]:
        events, probe = super().deliver(chosen, logits, greedy), self.token_lost_on_finish
        ended = {event.submission for event in events if isinstance(event, Finished)}
        kept = [event for event in events if not (isinstance(event, Emitted) and event.submission in ended)]
        if ended:
            probe.reach()
            probe.change(not probe.honest)
        return events if probe.honest else kept


class StarvingScheduler(Scheduler):
    """A request that was passed over once is never looked at again. The twin keeps count and looks."""

    starved: Probe

    def admit(self, rows: tuple[int, ...] | None) -> list[tuple[int, int]]:
        passed: set[int] = self.__dict__.setdefault("passed_over", set())
        probe = self.starved
        looked_at = tuple(waiting for waiting in self.queue if rows is None or waiting in rows)
        if not probe.honest:
            probe.change(any(waiting in passed for waiting in looked_at))
            looked_at = tuple(waiting for waiting in looked_at if waiting not in passed)
        admitted = super().admit(looked_at)
        if rows is None and self.queue:
            probe.reach()
            passed.update(self.queue)
        return admitted


class ArrivalScheduler(Scheduler):
    """A request takes a slot when it arrives, if one is free, and waits with it. The twin looks for one and leaves it."""

    allocated_on_arrival: Probe

    def enqueue(self, submission: int) -> bool:
        queued = super().enqueue(submission)
        if queued:
            self._reserve(submission)
        return queued

    def withdraw(self, submission: int) -> bool:
        self._give_back(submission)
        return super().withdraw(submission)

    def admit(self, rows: tuple[int, ...] | None) -> list[tuple[int, int]]:
        for submission in reversed(self.queue):
            self._give_back(submission)
        admitted = super().admit(rows)
        for submission in self.queue:
            self._reserve(submission)
        return admitted

    def _reserve(self, submission: int) -> None:
        probe = self.allocated_on_arrival
        probe.reach()
        if self.free and not probe.honest:
            probe.change()
            self.take(submission)

    def _give_back(self, submission: int) -> None:
        for slot in [slot for slot, owner in self.owners.items() if owner == submission]:
            self.release(slot)


class BatchwiseScheduler(Scheduler):
    """Slots that are released are free once all of them are, as in a static batch. The twin frees each at once."""

    held_until_batch_ends: Probe

    def release(self, slot: int) -> None:
        probe, done = self.held_until_batch_ends, self._done()
        probe.reach()
        done.append(slot)
        if probe.honest or len(done) == len(self.owners):
            for each in done:
                super().release(each)
            done.clear()
        probe.change(bool(done))

    def _done(self) -> list[int]:
        """Slots whose requests have ended, and that are not free yet."""
        done: list[int] = self.__dict__.setdefault("done", [])
        return done


_OWNERSHIP = CheckName.OWNERSHIP
_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE)

FAULTS = (
    Fault(
        name="stale-length",
        group="stale residue",
        modelled_on="llama.cpp#27148, onnxruntime-genai#2140 (a reset that does nothing)",
        doc="a slot keeps its length when it changes hands",
        mixins={"store": StaleLengthStore},
        smallest={
            Kind.LEAK: one_after_another(request((1,), 1), request((2,), 1)),
            Kind.OWNERSHIP: one_after_another(request((1,), 1), request((2,), 2)),
        },
        checks=(*_LEAKS, _OWNERSHIP),
    ),
    Fault(
        name="cancel-frees-twice",
        group="ownership",
        modelled_on="vllm#46240 (two completions free for one cancelled request)",
        doc="a cancelled request's slot is freed twice",
        mixins={
            "decoder": TwiceFreeingDecoder,
            "scheduler": TwiceFreeingScheduler,
            "batch": RoomyBatch,
            "sampler": RoomySampler,
        },
        smallest={
            Kind.OWNERSHIP: schedule(request((1,), 2), Step(), Cancel(0)),
            Kind.LEAK: schedule(request((1,), 2), Step(), Cancel(0), request((2,), 1), request((3,), 1)),
        },
        checks=(_OWNERSHIP, *_LEAKS),
    ),
    Fault(
        name="cancel-never-frees",
        group="ownership",
        modelled_on="TensorRT-LLM#12313 (a burst of cancels leaks until nothing can be scheduled)",
        doc="a cancelled request keeps its slot",
        mixins={"decoder": NeverFreeingDecoder},
        smallest={
            Kind.OWNERSHIP: schedule(request((1,), 2), Step(), Cancel(0)),
            Kind.STALLED: schedule(request((1,), 2), Step(), Cancel(0), request((2,), 1), slots=1),
        },
        checks=(_OWNERSHIP, CheckName.PROGRESS),
    ),
    Fault(
        name="token-lost-on-finish",
        group="lost result",
        modelled_on="transformers#40479 (a consumer drops what is not addressed to it)",
        doc="the last token of an answer is not streamed",
        mixins={"decoder": LosingDecoder},
        smallest={Kind.BOOKKEEPING: at_once(request((1,), 1))},
        checks=(CheckName.BOOKKEEPING,),
    ),
    Fault(
        name="starved",
        group="liveness",
        modelled_on="vllm#39734 (the queue frozen behind one request)",
        doc="a request that was passed over once is never admitted",
        mixins={"scheduler": StarvingScheduler},
        smallest={Kind.STALLED: at_once(request((1,), 1), request((2,), 1), slots=1)},
        checks=(CheckName.PROGRESS,),
    ),
    Fault(
        name="allocated-on-arrival",
        group="ownership",
        modelled_on="storage taken when a request arrives, though it needs none before it decodes (source article)",
        doc="a request takes its slot when it arrives, and holds it while it waits",
        mixins={"scheduler": ArrivalScheduler},
        smallest={Kind.OWNERSHIP: at_once(request((1,), 1), request((2,), 1), admit_max=1)},
        checks=(_OWNERSHIP,),
    ),
    Fault(
        name="held-until-batch-ends",
        group="ownership",
        modelled_on="a static batch that gives back its rows only when the longest answer is done (source article)",
        doc="a finished request keeps its slot until every other that runs has finished",
        mixins={"scheduler": BatchwiseScheduler},
        smallest={Kind.OWNERSHIP: at_once(request((1,), 1), request((2,), 2))},
        checks=(_OWNERSHIP,),
    ),
)
