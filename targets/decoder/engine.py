"""Decoder: continuous batching over slots. Requests join and leave while others decode.

One step: admit, run one forward for every row, choose a token each, retire those that ended. Everything a request was
given is given back in `retire` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from targets.decoder.batch import Batch
from targets.decoder.runner import Feed, Runner
from targets.decoder.scheduler import Scheduler
from targets.decoder.slots import SlotStore
from targets.decoder.states import StateStore
from targets.models import DTYPES, Plan
from targets.protocol import (
    Admitted,
    Audit,
    Emitted,
    Event,
    Finished,
    Freed,
    Holding,
    Inspection,
    Reason,
    Refused,
    Request,
    Row,
    Setting,
)


@dataclass(slots=True)
class Running:
    """A live request: `slot` is None while it waits; `answer` grows by one token a step."""

    submission: int
    request: Request
    slot: int | None = None
    answer: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """The class of each part of a decoder."""

    decoder: type[Decoder]
    scheduler: type[Scheduler] = Scheduler
    store: type[SlotStore] = SlotStore
    states: type[StateStore] = StateStore
    batch: type[Batch] = Batch
    runner: type[Runner] = Runner

    def with_(self, **changes: Any) -> Parts:
        """The same parts but for those named."""
        return replace(self, **changes)


class Decoder:
    """The built-in target `slots`; fulfils `targets.protocol.Target`."""

    def __init__(self, parts: Parts, network: nn.Module, plan: Plan, settings: Mapping[str, Setting]) -> None:
        slots = int(settings["slots"])
        self.plan = plan
        self.context_tokens_max = int(settings["context_tokens_max"])
        self.scheduler = parts.scheduler(
            slots, str(settings["slot_order"]), int(settings["queue_max"]), int(settings["admit_max"])
        )
        dtype, device = DTYPES[str(settings["dtype"])], torch.device(str(settings["device"]))
        self.store = parts.store(plan, slots, self.context_tokens_max, dtype, device)
        self.states = parts.states(plan, slots, dtype, device)
        self.batch = parts.batch(slots)
        self.runner = parts.runner(network, plan, self.store, self.states, str(settings["prefill"]))
        self.live: dict[int, Running] = {}
        if settings["sanitize"]:
            self.store.shadow()
        if settings["poison"] != "none":
            self.store.poison(str(settings["poison"]))
            self.states.poison(str(settings["poison"]))
            self.runner.padding = 0 if settings["poison"] == "low" else plan.vocabulary - 1

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Queues a request; refuses what can never be served, and answers at once what asks for nothing."""
        why = self.refusal(request)
        if why is None and request.max_new_tokens == 0:
            return [Finished(submission, Reason.LENGTH, ())]
        if why is None and not self.scheduler.enqueue(submission):
            why = "queue full"
        if why is not None:
            return [Refused(submission, why)]
        self.live[submission] = Running(submission, request)
        return []

    def refusal(self, request: Request) -> str | None:
        """Why a request can never be served, or None."""
        if not request.prompt:
            return "empty prompt"
        if len(request.prompt) >= self.context_tokens_max:
            return "prompt too long"
        if max(request.prompt) >= self.plan.vocabulary:
            return "token id past the vocabulary"
        return None

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Ends a request in whatever state it is; nothing happens if it has ended."""
        running = self.live.get(submission)
        if running is None:
            return []
        if running.slot is None:
            self.scheduler.withdraw(submission)
        return self.retire(running, reason)

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Advances every request, or only the named ones, by one token."""
        self.runner.forwards.clear()
        events = self.admit(rows)
        chosen = [row for row, submission in enumerate(self.batch.submissions) if rows is None or submission in rows]
        if chosen:
            with torch.inference_mode():
                logits = self.runner.run(self.feeds(chosen))
                events += self.runner.reports
                self.runner.reports = []
                events += self.deliver(chosen, logits, logits.argmax(-1).tolist())  # the step's only synchronisation
        return events

    def admit(self, rows: tuple[int, ...] | None) -> list[Event]:
        """Moves waiting requests into free slots."""
        events: list[Event] = []
        for submission, slot in self.scheduler.admit(rows):
            self.store.begin(slot)
            self.states.begin(slot)
            self.batch.join(submission, slot)
            self.live[submission].slot = slot
            events.append(Admitted(submission, slot))
        return events

    def feeds(self, chosen: list[int]) -> list[Feed]:
        """What each chosen row brings: its prompt the first time, its last token from then on."""
        slots, tokens = self.batch.slots(), self.batch.tokens()
        running = [self.live[self.batch.submissions[row]] for row in chosen]
        return [
            Feed(slots[row], [tokens[row]] if request.answer else request.request.prompt, request.submission)
            for row, request in zip(chosen, running, strict=True)
        ]

    def deliver(self, chosen: list[int], logits: torch.Tensor, greedy: list[int]) -> list[Event]:
        """Gives each row's request its token, then retires the requests that ended.

        Args:
            logits: [B, V]; row i belongs to batch row chosen[i], as do the tokens.
        """
        events: list[Event] = []
        ended: list[tuple[Running, Reason]] = []
        for row, choice, shown in zip(chosen, greedy, logits.unbind(), strict=True):
            running = self.live[self.batch.submissions[row]]
            token = self.token_of(running, choice)
            self.batch.keep(row, token)
            events.append(self.accept(running, token, shown))
            reason = self.ending(running)
            if reason is not None:
                ended.append((running, reason))
        for running, reason in ended:
            events += self.retire(running, reason)
        return events

    def token_of(self, running: Running, greedy: int) -> int:
        """The token to emit: the forced one while there is one, else the greedy one."""
        forced, count = running.request.forced, len(running.answer)
        return forced[count] if count < len(forced) else greedy

    def accept(self, running: Running, token: int, logits: torch.Tensor) -> Event:
        """Adds a token to an answer and streams it."""
        running.answer.append(token)
        return Emitted(running.submission, token, logits)

    def ending(self, running: Running) -> Reason | None:
        """Why a request ends with its last token, or None."""
        request, answer = running.request, running.answer
        if answer[-1] in request.stop:
            return Reason.STOP
        if len(answer) >= request.max_new_tokens:
            return Reason.LENGTH
        if len(request.prompt) + len(answer) >= self.context_tokens_max:
            return Reason.CONTEXT
        return None

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        """Ends a request and gives back all it held."""
        del self.live[running.submission]
        events: list[Event] = [Finished(running.submission, reason, tuple(running.answer))]
        if running.slot is not None:
            self.batch.leave(running.submission)
            self.store.end(running.slot)
            self.store.scrub(running.slot)
            self.states.scrub(running.slot)
            self.scheduler.release(running.slot)
            events.append(Freed(running.submission, running.slot))
        return events

    def audit(self) -> Audit:
        """Who owns which slot, and how many cells of it are the owner's and visible to it."""
        row_slots = dict(zip(self.batch.submissions, self.batch.slots(), strict=True))
        owners: dict[int, list[int]] = {}
        for slot, submission in self.scheduler.owners.items():
            owners.setdefault(slot, []).append(submission)
        for submission, slot in row_slots.items():
            if submission not in owners.setdefault(slot, []):
                owners[slot].append(submission)
        lengths = self.store.lengths
        return Audit(
            held=tuple(
                Holding(slot, tuple(sorted(held)), lengths[slot], lengths[slot], self.storage(slot))
                for slot, held in sorted(owners.items())
            ),
            free=tuple(self.scheduler.free),
            queued=tuple(self.scheduler.queue),
            slots=len(lengths),
        )

    def storage(self, slot: int) -> tuple[tuple[int, int, int], ...]:
        """The memory of all that a slot holds; none unless the store keeps tags."""
        if not self.store.tags:
            return ()
        cells = self.store.storage(slot)
        return (*cells, *self.states.storage(slot, 1 + max((slab for slab, _, _ in cells), default=-1)))

    def inspect(self) -> Inspection:
        """The forwards of the last step, as they were run, and the cells of everybody who has a row."""
        return Inspection(
            forwards=tuple(
                tuple(
                    Row(feed.submission, start, tuple(feed.tokens), feed.slot)
                    for feed, start in zip(feeds, starts, strict=True)
                )
                for feeds, starts in self.runner.forwards
            ),
            cells={
                submission: self.store.seen(slot)
                for submission, slot in zip(self.batch.submissions, self.batch.slots(), strict=True)
            },
        )

    def close(self) -> None:
        """Drops every request and the store."""
        self.live.clear()
