"""Mechanisms: what happened in a trace, counted, so that nothing passes by never happening.

`MECHANISMS` are seen in any target's events. What else a target did, it counts itself and tells in its audits.
"""

from __future__ import annotations

from collections import Counter

from targets.protocol import (
    Admitted,
    Asked,
    Audited,
    Cancel,
    Control,
    Counted,
    Emitted,
    Finished,
    Freed,
    Preempted,
    Reason,
    Refused,
    Request,
    Schedule,
    Step,
    Stepped,
    Submit,
    Trace,
    Wait,
    submissions,
)

LONG_TOKENS = 512

SAMPLED = ("sampled", "penalised", "biased", "min_new_tokens", "stop_sequence", "logprobs")
MECHANISMS = (
    "slot_reuse",
    "join_while_decoding",
    "leave_while_decoding",
    "longest_leaves_first",
    "queued",
    "cancel_queued",
    "cancel_first_token",
    "cancel_decoding",
    "cancel_last_step",
    "cancel_ended",
    "deadline",
    "stop",
    "context_limit",
    "refused",
    "id_reused",
    "id_reused_live",
    "shared_prefix",
    "identical_prompt",
    "rows_named",
    "wait",
    "long",
    *SAMPLED,
)
"""Every mechanism that is counted for any target, in the order of the report."""


def possible(control: Control) -> list[str]:
    """The mechanisms that a target with this control can be made to show."""
    out_of_reach = {
        *(() if control.sampling else SAMPLED),
        *(() if control.rows else ("rows_named",)),
        *(() if control.joins else ("join_while_decoding",)),
    }
    return [name for name in MECHANISMS if name not in out_of_reach]


def mechanisms(schedule: Schedule, trace: Trace) -> Counter[str]:
    """How often each mechanism fired in one trace."""
    fired: Counter[str] = Counter()
    requests = submissions(schedule)
    state = _State()
    coming = iter(range(len(requests)))
    told: dict[str, int] = {}
    for event in trace:
        if isinstance(event, Asked) and event.op < len(schedule.ops):
            op = schedule.ops[event.op]
            if isinstance(op, Submit):
                state.submit(next(coming), requests, fired)
            elif isinstance(op, Cancel):
                fired[state.cancel_state(op.submission, requests)] += 1
            elif isinstance(op, Wait):
                fired["wait"] += 1
            elif isinstance(op, Step) and op.rows is not None:
                fired["rows_named"] += 1
        elif isinstance(event, Audited):
            told = event.audit.counts
        elif isinstance(event, Counted):
            told = event.counts
        else:
            state.see(event, requests, fired)
    fired.update(told)
    return fired


class _State:
    """Who is where, as far as the trace says."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.running: dict[int, int] = {}
        self.tokens: Counter[int] = Counter()
        self.used_slots: set[int] = set()
        self.submitted: list[int] = []
        self.preempted: set[int] = set()
        self.step = 0

    def submit(self, who: int, requests: tuple[Request, ...], fired: Counter[str]) -> None:
        live = self.waiting | set(self.running)
        request = requests[who]
        for other in self.submitted:
            theirs = requests[other]
            if request.client_id is not None and request.client_id == theirs.client_id:
                fired["id_reused_live" if other in live else "id_reused"] += 1
            if request.prompt and request.prompt == theirs.prompt:
                fired["identical_prompt"] += 1
            elif request.prompt[:1] and request.prompt[:2] == theirs.prompt[:2]:
                fired["shared_prefix"] += 1
        fired["long"] += len(request.prompt) + request.max_new_tokens > LONG_TOKENS
        self.submitted.append(who)
        self.waiting.add(who)

    def cancel_state(self, who: int, requests: tuple[Request, ...]) -> str:
        if who in self.waiting:
            return "cancel_preempted" if who in self.preempted else "cancel_queued"
        if who not in self.running:
            return "cancel_ended"
        left = requests[who].max_new_tokens - self.tokens[who]
        return "cancel_last_step" if left == 1 else "cancel_first_token" if self.tokens[who] <= 1 else "cancel_decoding"

    def see(self, event: object, requests: tuple[Request, ...], fired: Counter[str]) -> None:
        if isinstance(event, Stepped):
            self.step = event.step
            fired["queued"] += len(self.waiting) if self.running else 0
        elif isinstance(event, Admitted):
            fired["slot_reuse"] += event.slot in self.used_slots
            fired["join_while_decoding"] += any(self.tokens[other] for other in self.running)
            self.used_slots.add(event.slot)
            self.waiting.discard(event.submission)
            self.running[event.submission] = event.slot
        elif isinstance(event, Preempted):
            self.running.pop(event.submission, None)
            self.waiting.add(event.submission)
            self.preempted.add(event.submission)
        elif isinstance(event, Emitted):
            self.emit(event, requests[event.submission], fired)
        elif isinstance(event, Refused):
            fired["refused"] += 1
            self.waiting.discard(event.submission)
        elif isinstance(event, Finished):
            self.end(event, requests, fired)
        elif isinstance(event, Freed):
            self.running.pop(event.submission, None)

    def emit(self, event: Emitted, request: Request, fired: Counter[str]) -> None:
        """Counts tokens that were drawn, and told of, one by one; other parameters once a request."""
        asked, count = request.sampling, self.tokens[event.submission]
        self.tokens[event.submission] += 1
        fired["sampled"] += bool(asked.temperature) and count >= len(request.forced)
        fired["logprobs"] += bool(event.logprobs)
        if count == len(request.forced):  # the first that it chose
            penalties = (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty)
            fired["penalised"] += penalties != (1, 0, 0)
            fired["biased"] += bool(asked.bias or asked.allowed)
            fired["min_new_tokens"] += bool(asked.min_new_tokens and request.stop)

    def end(self, event: Finished, requests: tuple[Request, ...], fired: Counter[str]) -> None:
        who = event.submission
        self.waiting.discard(who)
        if who in self.running:
            del self.running[who]
            fired["leave_while_decoding"] += bool(self.running)
            length = len(requests[who].prompt)
            fired["longest_leaves_first"] += bool(self.running) and all(
                length > len(requests[other].prompt) for other in self.running
            )
        named = {Reason.STOP: "stop", Reason.DEADLINE: "deadline", Reason.CONTEXT: "context_limit"}.get(event.reason)
        if named is not None:
            fired[named] += 1
        if event.reason is Reason.STOP and event.tokens[-1:] and event.tokens[-1] not in requests[who].stop:
            fired["stop_sequence"] += 1
