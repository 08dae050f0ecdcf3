"""Edits: the ways in which a schedule can be made simpler. Pure functions from schedule to schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import msgspec

from targets.protocol import GREEDY, Op, Request, Schedule, Setting, Step, Submit, Wait, submissions, with_request

T = TypeVar("T")


def reductions(schedule: Schedule, fixed: Collection[str] = ()) -> Iterator[Schedule]:
    """Every schedule that is one single step simpler: what 1-minimality is measured against.

    Args:
        fixed: Settings that stay.
    """
    requests = submissions(schedule)
    for submission in range(len(requests)):
        if len(requests) > 1:
            yield drop_request(schedule, submission)
    for index, op in enumerate(schedule.ops):
        if not isinstance(op, Submit):
            yield with_ops(schedule, [*schedule.ops[:index], *schedule.ops[index + 1 :]])
        if isinstance(op, Step) and op.count > 1:
            yield with_ops(schedule, [*schedule.ops[:index], Step(op.count - 1, op.rows), *schedule.ops[index + 1 :]])
        if isinstance(op, Step) and op.count:
            yield from sooner(schedule, index, 1)
    for name in schedule.settings:
        if name not in fixed:
            yield without_setting(schedule, name)
    for submission, request in enumerate(requests):
        smaller = [
            resized(request, prompt=len(request.prompt) - 1),
            msgspec.structs.replace(request, prompt=request.prompt[1:]) if len(request.prompt) > 1 else request,
            resized(request, new=request.max_new_tokens - 1),
            *less_extra(request),
        ]
        for less in smaller:
            yield with_request(schedule, submission, less)


def sooner(schedule: Schedule, index: int, steps: int) -> Iterator[Schedule]:
    """Without `steps` of the steps of one op, and with answers that much shorter: of all requests before it, then of each.

    Neither works alone where a request must end just when another does something: a shorter wait needs a shorter answer.
    """
    op = schedule.ops[index]
    assert isinstance(op, Step), "only steps can be taken away"
    left = [Step(op.count - steps, op.rows)] if op.count > steps else []
    fewer = with_ops(schedule, [*schedule.ops[:index], *left, *schedule.ops[index + 1 :]])
    before = sum(isinstance(earlier, Submit) for earlier in schedule.ops[:index])
    groups = [set(range(before)), *({submission} for submission in range(before) if before > 1)]
    for group in groups:
        requests = submissions(fewer)
        shorter = fewer
        for submission in group:
            less = resized(requests[submission], new=requests[submission].max_new_tokens - steps)
            shorter = with_request(shorter, submission, less)
        yield shorter


def step_count(schedule: Schedule, index: int) -> int:
    """How many steps an op is; 0 for other ops and past the end."""
    op = schedule.ops[index] if index < len(schedule.ops) else None
    return op.count if isinstance(op, Step) else 0


def keep_requests(schedule: Schedule, kept: set[int]) -> Schedule:
    """Only these submissions, renumbered."""
    for submission in reversed(range(len(submissions(schedule)))):
        if submission not in kept:
            schedule = drop_request(schedule, submission)
    return schedule


def drop_request(schedule: Schedule, gone: int) -> Schedule:
    """Without one submission and every op that names it; the later ones move down by one."""
    ops: list[Op] = []
    submission = -1
    for op in schedule.ops:
        if isinstance(op, Submit):
            submission += 1
            if submission != gone:
                ops.append(Submit(_without(op.request, gone)))
        elif isinstance(op, Step):
            if op.rows is None:
                ops.append(op)
            elif rows := tuple(row - (row > gone) for row in op.rows if row != gone):
                ops.append(Step(op.count, rows))
        elif op.submission != gone:
            ops.append(msgspec.structs.replace(op, submission=op.submission - (op.submission > gone)))
    return with_ops(schedule, ops)


def _without(request: Request, gone: int) -> Request:
    """A request that still names the submissions that it did, or none where that one goes."""

    def moved(named: int | None) -> int | None:
        return named if named is None or named < gone else None if named == gone else named - 1

    sibling, before = moved(request.sample_of), moved(request.continues)
    return msgspec.structs.replace(request, sample_of=sibling, continues=before)


def with_ops(schedule: Schedule, ops: list[Op]) -> Schedule:
    """Other ops; steps that follow each other become one."""
    merged: list[Op] = []
    for op in ops:
        last = merged[-1] if merged else None
        if isinstance(op, Step) and isinstance(last, Step) and op.rows == last.rows:
            merged[-1] = Step(last.count + op.count, op.rows)
        else:
            merged.append(op)
    return msgspec.structs.replace(schedule, ops=tuple(merged))


def without_setting(schedule: Schedule, name: str) -> Schedule:
    """One setting back at its default."""
    rest = {key: value for key, value in schedule.settings.items() if key != name}
    return msgspec.structs.replace(schedule, settings=rest)


def with_settings(schedule: Schedule, changes: Mapping[str, Setting]) -> Schedule:
    """Other values for some settings."""
    return msgspec.structs.replace(schedule, settings={**schedule.settings, **changes})


def apart(schedule: Schedule) -> Schedule:
    """A step before each request that would otherwise come together with the one before it."""
    ops: list[Op] = []
    for op in schedule.ops:
        if isinstance(op, Submit) and ops and isinstance(ops[-1], Submit):
            ops.append(Step())
        ops.append(op)
    return msgspec.structs.replace(schedule, ops=tuple(ops))


def later(schedule: Schedule) -> Schedule:
    """A step before the last request, and before what comes with it."""
    last = max(index for index, op in enumerate(schedule.ops) if isinstance(op, Submit))
    return with_ops(schedule, [*schedule.ops[:last], Step(), *schedule.ops[last:]])


def brief(schedule: Schedule) -> Schedule:
    """Single steps in place of many."""
    ops = [Step(min(op.count, 1), op.rows) if isinstance(op, Step) else op for op in schedule.ops]
    return msgspec.structs.replace(schedule, ops=tuple(ops))


def resized(request: Request, prompt: int | None = None, new: int | None = None) -> Request:
    """A shorter prompt (its beginning) and a smaller budget; never longer, and never less than one token of each."""
    length = len(request.prompt) if prompt is None else min(max(prompt, 1), len(request.prompt))
    budget = request.max_new_tokens if new is None else min(max(new, 1), request.max_new_tokens)
    return msgspec.structs.replace(request, prompt=request.prompt[:length], max_new_tokens=budget)


def retold(request: Request, prompt: tuple[int, ...]) -> Request:
    """The same request with another prompt."""
    return msgspec.structs.replace(request, prompt=prompt)


def ends(request: Request) -> Request:
    """Only the first and the last token of the prompt."""
    return msgspec.structs.replace(request, prompt=request.prompt[:1] + request.prompt[1:][-1:])


def plain(request: Request) -> Request:
    """The continuation of its prompt, and nothing else that it may ask."""
    return Request(prompt=request.prompt, max_new_tokens=request.max_new_tokens)


def extra_count(request: Request) -> int:
    """How much a request asks beside the continuation of a prompt."""
    asked = request.sampling
    named = (request.deadline_s, request.client_id, request.salt, request.sample_of, request.continues)
    changed: int = sum(getattr(asked, name) != getattr(GREEDY, name) for name in asked.__struct_fields__)
    lists = (request.stop, request.stop_sequences, request.forced)
    return sum(value is not None for value in named) + sum(map(bool, lists)) + changed


def id_count(request: Request) -> int:
    """How many ids its stops and its sampling name."""
    listed = len(request.stop) + len(request.sampling.bias) + len(request.sampling.allowed)
    return listed + sum(map(len, request.stop_sequences))


def decisive(request: Request) -> Request:
    """Penalties so strong, and of the sign, that what was said before is said again: few tokens then show them."""
    asked, changes = request.sampling, {}
    if asked.repetition_penalty != 1:
        changes["repetition_penalty"] = 0.01
    changes |= {name: -50.0 for name in ("presence_penalty", "frequency_penalty") if getattr(asked, name)}
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(asked, **changes)) if changes else request


def less_extra(request: Request) -> Iterator[Request]:
    """Each way to take one extra away, and half of the ids that one names."""
    replace = msgspec.structs.replace
    if request.stop:
        yield replace(request, stop=())
        for part in _halves(request.stop):
            yield replace(request, stop=part)
    if request.deadline_s is not None:
        yield replace(request, deadline_s=None)
    if request.client_id is not None:
        yield replace(request, client_id=None)
    if request.forced:
        yield replace(request, forced=())
    if request.stop_sequences:
        yield replace(request, stop_sequences=())
        for sequences in _halves(request.stop_sequences):
            yield replace(request, stop_sequences=sequences)
    if request.salt is not None:
        yield replace(request, salt=None)
    if request.sample_of is not None:
        yield replace(request, sample_of=None)
    if request.continues is not None:
        yield replace(request, continues=None)
    if request.sampling != GREEDY:
        yield replace(request, sampling=GREEDY)
        for name in request.sampling.__struct_fields__:
            default = getattr(GREEDY, name)
            if getattr(request.sampling, name) != default:
                yield replace(request, sampling=replace(request.sampling, **{name: default}))
        for ids in _halves(request.sampling.allowed):
            yield replace(request, sampling=replace(request.sampling, allowed=ids))
        for pairs in _halves(request.sampling.bias):
            yield replace(request, sampling=replace(request.sampling, bias=pairs))


def _halves(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """The first and the second half of several."""
    if len(items) > 1:
        yield items[: len(items) // 2]
        yield items[len(items) // 2 :]


def simpler_op(op: Op) -> Iterator[Op]:
    """What can stand in for an op: steps for a wait, steps for everyone, fewer steps."""
    if isinstance(op, Wait):
        yield Step()
        if op.tokens > 1:
            yield Step(op.tokens)  # steps can be taken away together with tokens of an answer
    elif isinstance(op, Step):
        if op.rows is not None:
            yield Step(op.count)
        for count in (1, 2, op.count // 2, op.count - 1):
            if 0 < count < op.count:
                yield Step(count, op.rows)
