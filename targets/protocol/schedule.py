"""Schedules: what we asked. One frozen data type that is generated, replayed, shrunk, stored and printed.

A request is known by its *submission*, the index of its `Submit` among the Submits, never by its client id: ids may be
reused, because real bugs live there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from targets.protocol.errors import BadInput
from targets.protocol.knobs import Setting

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Index = Annotated[int, msgspec.Meta(ge=0, le=100_000)]

SCHEDULE_VERSION = 1
OPS_MAX = 100_000
STEPS_MAX = 100_000


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a token is chosen from logits; the defaults are greedy.

    Logits go through, in this order: repetition penalty (over prompt and answer), presence and frequency penalty (over the
    answer), bias, allowed ids, and stop ids while the answer is shorter than `min_new_tokens`. Then the largest is chosen;
    or, with a temperature, the largest of `logits / temperature + noise`, where the noise of the i-th token is a function
    of `seed` and i alone: `-log(-log(u))` with u float64 [V] from `torch.rand`, by a CPU generator that was seeded with
    `seed * 1_000_003 + i`.

    Attributes:
        temperature: 0 for greedy.
        seed: The request's own; the same seed gives the same tokens in any batch.
        repetition_penalty: Divides positive logits of ids that were seen and multiplies negative ones.
        presence_penalty: Taken once from the logit of every id in the answer.
        frequency_penalty: Taken as often as the id stands in the answer.
        bias: (id, what is added to its logit) each.
        allowed: The only ids that may be chosen; empty for all.
        min_new_tokens: So many tokens end nothing: no stop id is chosen for them, and neither a stop id that is forced there
            nor a stop sequence that is complete by then ends the answer.
        logprobs: So many of the likeliest ids are told with each token, and the token itself; 0 for none.
    """

    temperature: float = 0.0
    seed: Count = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[TokenId, float], ...] = ()
    allowed: tuple[TokenId, ...] = ()
    min_new_tokens: Count = 0
    logprobs: Count = 0


GREEDY = Sampling()


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client asks for: the continuation of a prompt, greedy unless `sampling` says otherwise.

    Attributes:
        prompt: Token ids.
        max_new_tokens: At most so many tokens are generated.
        stop: Token ids that end the answer; the stop token itself is part of it.
        stop_sequences: Sequences of token ids that end it in the same way.
        salt: Requests share cached state only with those of equal salt.
        sample_of: It asks for one more answer to the prompt of that earlier submission (n > 1): a target may share the
            prompt's state between them. A hint: where the prompts or salts differ it means nothing.
        continues: Prompt and answer, so far, of that earlier submission come before this prompt, as in the next turn of a
            session. What that is, is known when it is handed in: a target is given the whole (`targets.protocol.sessions`).
        deadline_s: Virtual seconds (one step is one) after which the conductor ends it; None for never.
        client_id: What the client calls itself; two live requests may share one.
        untrusted: (first, end) of the prompt's tokens that are of low trust. It means something only to a target with a knob
            for it, which weighs them less; the reference knows nothing of it.
        forced: For variants: the i-th generated token is forced[i] whatever the logits say. Past its end, greedy.
    """

    prompt: tuple[TokenId, ...]
    max_new_tokens: Count
    stop: tuple[TokenId, ...] = ()
    stop_sequences: tuple[tuple[TokenId, ...], ...] = ()
    sampling: Sampling = GREEDY
    salt: Count | None = None
    sample_of: Index | None = None
    continues: Index | None = None
    deadline_s: Count | None = None
    client_id: Count | None = None
    untrusted: tuple[Index, Index] = (0, 0)
    forced: tuple[TokenId, ...] = ()


class Submit(msgspec.Struct, frozen=True, tag="submit", forbid_unknown_fields=True):
    """A client hands in a request."""

    request: Request


class Step(msgspec.Struct, frozen=True, tag="step", forbid_unknown_fields=True, omit_defaults=True):
    """The target takes `count` steps; with `rows`, only those submissions may advance (targets that allow it)."""

    count: Count = 1
    rows: tuple[Index, ...] | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    """A client gives up, in whatever state its request is."""

    submission: Index


class Wait(msgspec.Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    """Nothing else is asked until that submission has given `tokens` tokens, or has ended."""

    submission: Index
    tokens: Count


Op = Submit | Step | Cancel | Wait


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Knob settings (only those that are not the default) and what is asked, in order.

    After the last op the conductor drains: it steps until every request has ended or nothing advances.
    """

    ops: tuple[Op, ...]
    settings: dict[str, Setting] = {}
    version: Annotated[int, msgspec.Meta(ge=SCHEDULE_VERSION, le=SCHEDULE_VERSION)] = SCHEDULE_VERSION

    def key(self) -> bytes:
        """Bytes that are equal exactly when two schedules are: for memories and seeds."""
        return msgspec.json.encode(self, order="deterministic")


def submissions(schedule: Schedule) -> tuple[Request, ...]:
    """The requests of a schedule; the index of each is its submission."""
    return tuple(op.request for op in schedule.ops if isinstance(op, Submit))


def with_requests(schedule: Schedule, change: Callable[[int, Request], Request]) -> Schedule:
    """The same schedule with each request put through `change(submission, request)`."""
    ops: list[Op] = []
    submission = 0
    for op in schedule.ops:
        if isinstance(op, Submit):
            ops.append(Submit(change(submission, op.request)))
            submission += 1
        else:
            ops.append(op)
    return msgspec.structs.replace(schedule, ops=tuple(ops))


def with_request(schedule: Schedule, submission: int, request: Request) -> Schedule:
    """The same schedule with another request in one place."""
    return with_requests(schedule, lambda which, same: request if which == submission else same)


def with_ends(schedule: Schedule, ends: tuple[int, ...]) -> Schedule:
    """The same schedule with these ids among every request's stop ids."""
    if not ends:
        return schedule
    return with_requests(
        schedule, lambda _, request: msgspec.structs.replace(request, stop=tuple(dict.fromkeys((*request.stop, *ends))))
    )


def check_references(schedule: Schedule, where: str = "") -> None:
    """Raises BadInput where an op names a submission that was not handed in before it, or it is too long."""
    if len(schedule.ops) > OPS_MAX:
        raise BadInput("ops", f"at most {OPS_MAX}", len(schedule.ops), where)
    steps = sum(op.count for op in schedule.ops if isinstance(op, Step))
    if steps > STEPS_MAX:
        raise BadInput("steps", f"at most {STEPS_MAX} in all", steps, where)
    seen = 0
    for index, op in enumerate(schedule.ops):
        named: tuple[int, ...] = ()
        if isinstance(op, Submit):
            named = tuple(other for other in (op.request.sample_of, op.request.continues) if other is not None)
        elif isinstance(op, Step):
            named = op.rows or ()
        else:
            named = (op.submission,)
        for submission in named:
            if submission >= seen:
                rule = f"one of the {seen} submissions before it"
                raise BadInput("submission", rule, submission, f"op {index}{', ' + where if where else ''}")
        seen += isinstance(op, Submit)


def format_schedule(schedule: Schedule) -> str:
    """A schedule on a few readable lines, an op a line."""
    lines = []
    if schedule.settings:
        lines.append("settings  " + " ".join(f"{name}={value}" for name, value in sorted(schedule.settings.items())))
    submission, requests = 0, submissions(schedule)
    for index, op in enumerate(schedule.ops):
        if isinstance(op, Submit):
            lines.append(f"{index:>3}  submit #{submission}  {_format_request(op.request)}")
            submission += 1
        elif isinstance(op, Step):
            rows = "" if op.rows is None else "  only " + " ".join(f"#{row}" for row in op.rows)
            lines.append(f"{index:>3}  step {op.count}{rows}")
        elif isinstance(op, Cancel):
            lines.append(f"{index:>3}  cancel #{op.submission}")
        elif op.tokens > requests[op.submission].max_new_tokens:
            lines.append(f"{index:>3}  wait for the end of #{op.submission}")
        else:
            lines.append(f"{index:>3}  wait #{op.submission} for {op.tokens} tokens")
    return "\n".join(lines)


def _format_request(request: Request) -> str:
    shown = " ".join(map(str, request.prompt[:12]))
    if len(request.prompt) > 12:
        shown += f" … ({len(request.prompt)} tokens)"
    parts = [f"prompt [{shown}]", f"new {request.max_new_tokens}"]
    if request.stop:
        parts.append("stop [" + " ".join(map(str, request.stop)) + "]")
    if request.stop_sequences:
        parts.append("stop " + " ".join(f"[{' '.join(map(str, sequence))}]" for sequence in request.stop_sequences))
    if request.sampling != GREEDY:
        fields = msgspec.structs.asdict(request.sampling)
        changed = {name: value for name, value in fields.items() if value != getattr(GREEDY, name)}
        parts.append(" ".join(f"{name.replace('_', ' ')} {value}" for name, value in changed.items()))
    if request.salt is not None:
        parts.append(f"salt {request.salt}")
    if request.sample_of is not None:
        parts.append(f"one more answer to #{request.sample_of}")
    if request.continues is not None:
        parts.append(f"goes on from #{request.continues}")
    if request.deadline_s is not None:
        parts.append(f"deadline {request.deadline_s} s")
    if request.client_id is not None:
        parts.append(f"id {request.client_id}")
    if request.untrusted != (0, 0):
        parts.append("untrusted {}..{}".format(*request.untrusted))
    if request.forced:
        parts.append(f"{len(request.forced)} tokens forced")
    return "  ".join(parts)
