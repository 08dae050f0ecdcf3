"""Shrink: from a failing schedule to one from which nothing can be taken away without losing the same failure.

Hypothesis does not do this: its shrinker took 58 to 1,254 evaluations and twice stuck at five and six requests. Ours knows
what a schedule is. It first tries the large steps that usually work (the victim alone, the victim and one other, everything
at its smallest), then single reductions until none is left: `reductions` defines both the last pass and 1-minimality.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from oracle.case import with_requests
from oracle.finding import Finding
from targets.protocol import Knob, Op, Request, Schedule, Setting, Step, Submit, Wait, submissions

Evaluate = Callable[[Schedule], Awaitable[Finding | None]]
"""Judges a schedule, variants included; the finding of the kind that is being shrunk, or None."""

EVALUATIONS_MAX = 400


@dataclass(frozen=True)
class Shrunk:
    """The smallest schedule found, its finding, and what it took.

    Attributes:
        minimal: Whether every single reduction was tried and lost the failure (else the evaluations ran out).
    """

    schedule: Schedule
    finding: Finding
    evaluations: int
    minimal: bool


def sort_key(schedule: Schedule) -> tuple[int, ...]:
    """Smaller is simpler. The order of the parts is the order in which a reader asks for them.

    Who takes part; how many tokens they ask for and bring; how many instructions it takes; how many steps; what else has to
    be set; then extras, and at last how large the token ids are.
    """
    requests = submissions(schedule)
    steps = sum(op.count if isinstance(op, Step) else op.tokens + 1 for op in schedule.ops if isinstance(op, Step | Wait))
    extras = sum(
        bool(request.stop) + (request.deadline_s is not None) + (request.client_id is not None) + bool(request.forced)
        for request in requests
    ) + sum(isinstance(op, Wait) or (isinstance(op, Step) and op.rows is not None) for op in schedule.ops)
    return (
        len(requests),
        sum(len(request.prompt) + request.max_new_tokens for request in requests),
        len(schedule.ops),
        steps,
        len(schedule.settings),
        extras,
        sum(len(request.stop) for request in requests),
        sum(sum(request.prompt) for request in requests),
    )


async def shrink(schedule: Schedule, finding: Finding, knobs: tuple[Knob, ...], evaluate: Evaluate) -> Shrunk:
    """Shrinks a failing schedule; the result shows a finding of the same kind by the same check."""
    shrinker = _Shrinker(schedule, finding, knobs, evaluate)
    await shrinker.run()
    return Shrunk(shrinker.best, shrinker.finding, shrinker.evaluations, shrinker.minimal)


class _Shrinker:
    """The search itself; `best` always fails."""

    def __init__(self, schedule: Schedule, finding: Finding, knobs: tuple[Knob, ...], evaluate: Evaluate) -> None:
        self.best = schedule
        self.finding = finding
        self.knobs = knobs
        self.evaluate = evaluate
        self.evaluations = 0
        self.minimal = False
        self._tried: set[bytes] = {schedule.key()}

    async def run(self) -> None:
        """Rounds of passes while any of them helps, then every single reduction as proof."""
        improved = True
        while improved:
            improved = False
            for candidates in (self._requests, self._ops, self._settings, self._lengths, self._extras, self._steps):
                for candidate in candidates():
                    improved |= await self._try(candidate)
            improved = improved or await self._any(self._pools()) or await self._any(reductions(self.best))
        for candidate in self._token_ids():
            await self._try(candidate)
        self.minimal = self.evaluations < EVALUATIONS_MAX

    async def _any(self, candidates: Iterator[Schedule]) -> bool:
        for candidate in candidates:
            if await self._try(candidate):
                return True
        return False

    async def _try(self, candidate: Schedule) -> bool:
        """Takes a candidate that is simpler than the best and fails in the same way."""
        key = candidate.key()
        if key in self._tried or sort_key(candidate) >= sort_key(self.best) or self.evaluations >= EVALUATIONS_MAX:
            return False
        self._tried.add(key)
        self.evaluations += 1
        finding = await self.evaluate(candidate)
        if finding is None:
            return False
        self.best, self.finding = candidate, finding
        return True

    # The passes below read `self.best` anew after every candidate: each builds on what the one before it achieved.

    def _requests(self) -> Iterator[Schedule]:
        """The victim alone; the victim and one other; then one request less at a time."""
        victim = self.finding.submission
        if victim is not None and len(submissions(self.best)) > 1:
            yield keep_requests(self.best, {victim})
        if victim is not None and len(submissions(self.best)) > 3:
            for other in (*self.finding.sources, *range(len(submissions(self.best)))):
                if other != victim and len(submissions(self.best)) > 2:
                    yield keep_requests(self.best, {victim, other})
        for submission in reversed(range(len(submissions(self.best)))):
            if 1 < len(submissions(self.best)) and submission < len(submissions(self.best)):
                yield drop_request(self.best, submission)

    def _ops(self) -> Iterator[Schedule]:
        """All requests at once and nothing else; then one op less at a time, the last first."""
        yield with_ops(self.best, [op for op in self.best.ops if isinstance(op, Submit)])
        for index in reversed(range(len(self.best.ops))):
            if index < len(self.best.ops) and not isinstance(self.best.ops[index], Submit):
                yield with_ops(self.best, [*self.best.ops[:index], *self.best.ops[index + 1 :]])

    def _settings(self) -> Iterator[Schedule]:
        """Every setting at its default, then each."""
        yield msgspec.structs.replace(self.best, settings=self._fixed())
        for name in tuple(self.best.settings):
            if name not in self._fixed():
                yield msgspec.structs.replace(
                    self.best, settings={key: value for key, value in self.best.settings.items() if key != name}
                )

    def _fixed(self) -> dict[str, Setting]:
        """Settings that are the run's own (precision, device) and not part of the search."""
        drawn = {knob.name for knob in self.knobs if knob.drawn}
        return {name: value for name, value in self.best.settings.items() if name not in drawn}

    def _lengths(self) -> Iterator[Schedule]:
        """All prompts and answers at one token; then each prompt and answer at one, two, half, one less.

        A prompt is cut at its end, and to its two ends, which keeps both a shared beginning and what comes behind it.
        """
        yield with_requests(self.best, lambda _, request: resized(request, 1, 1))
        yield with_requests(self.best, lambda _, request: resized(ends(request), 2, 1))
        yield with_requests(self.best, lambda _, request: resized(request, 2, 2))
        yield with_requests(self.best, lambda _, request: ends(request))
        for submission in range(len(submissions(self.best))):
            for size in (lambda _: 1, lambda _: 2, lambda tokens: tokens // 2, lambda tokens: tokens * 3 // 4):
                yield self._resize(submission, prompt=size(len(self._request(submission).prompt)))
                yield self._resize(submission, new=size(self._request(submission).max_new_tokens))
            yield with_requests(
                self.best, lambda which, same, submission=submission: ends(same) if which == submission else same
            )
            for _ in range(8):
                yield self._resize(submission, prompt=len(self._request(submission).prompt) - 1)
                yield self._resize(submission, new=self._request(submission).max_new_tokens - 1)

    def _request(self, submission: int) -> Request:
        return submissions(self.best)[submission]

    def _resize(self, submission: int, prompt: int | None = None, new: int | None = None) -> Schedule:
        return with_requests(
            self.best, lambda which, request: resized(request, prompt, new) if which == submission else request
        )

    def _extras(self) -> Iterator[Schedule]:
        """Plain requests; then each extra on its own."""
        yield with_requests(self.best, lambda _, request: plain(request))
        for submission in range(len(submissions(self.best))):
            yield with_requests(
                self.best, lambda which, request, submission=submission: plain(request) if which == submission else request
            )
            for less in _less_extra(self._request(submission)):
                yield with_requests(
                    self.best,
                    lambda which, request, submission=submission, less=less: less if which == submission else request,
                )

    def _steps(self) -> Iterator[Schedule]:
        """Single steps for everyone, in place of waits, named rows and many steps."""
        for index in range(len(self.best.ops)):
            for op in _simpler_op(self.best.ops[index]) if index < len(self.best.ops) else ():
                yield with_ops(self.best, [*self.best.ops[:index], op, *self.best.ops[index + 1 :]])
            for part in (1, 2, 0):
                count = _count(self.best, index)
                if count:
                    yield from sooner(self.best, index, count if part == 1 else count // 2 if part == 2 else 1)

    def _pools(self) -> Iterator[Schedule]:
        """A request less where a knob at its smallest makes up for it: a smaller pool needs fewer to fill it."""
        if len(submissions(self.best)) < 3:
            return
        for knob in self.knobs:
            numbers = [value for value in knob.values if isinstance(value, int) and not isinstance(value, bool)]
            if knob.drawn and knob.low is not None and numbers and self.best.settings.get(knob.name) != min(numbers):
                for submission in reversed(range(len(submissions(self.best)))):
                    smaller = drop_request(self.best, submission)
                    yield msgspec.structs.replace(smaller, settings={**smaller.settings, knob.name: min(numbers)})

    def _token_ids(self) -> Iterator[Schedule]:
        """Small ids with the same pattern of equal ones; then one and the same id all through each prompt."""
        names: dict[int, int] = {}
        for request in submissions(self.best):
            for token in request.prompt:
                names.setdefault(token, len(names) + 1)
        yield with_requests(
            self.best,
            lambda _, request: msgspec.structs.replace(request, prompt=tuple(names[token] for token in request.prompt)),
        )
        for submission in range(len(submissions(self.best))):
            first = self._request(submission).prompt[:1] * len(self._request(submission).prompt)
            yield with_requests(
                self.best,
                lambda which, request, submission=submission, first=first: (
                    msgspec.structs.replace(request, prompt=first) if which == submission else request
                ),
            )


def reductions(schedule: Schedule) -> Iterator[Schedule]:
    """Every schedule that is one single step simpler: what 1-minimality is measured against."""
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
        rest = {key: value for key, value in schedule.settings.items() if key != name}
        yield msgspec.structs.replace(schedule, settings=rest)
    for submission, request in enumerate(requests):
        smaller = [
            resized(request, prompt=len(request.prompt) - 1),
            msgspec.structs.replace(request, prompt=request.prompt[1:]) if len(request.prompt) > 1 else request,
            resized(request, new=request.max_new_tokens - 1),
            *_less_extra(request),
        ]
        for less in smaller:
            yield with_requests(
                schedule, lambda which, same, submission=submission, less=less: less if which == submission else same
            )


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
        yield with_requests(
            fewer,
            lambda which, request, group=group: (
                resized(request, new=request.max_new_tokens - steps) if which in group else request
            ),
        )


def _count(schedule: Schedule, index: int) -> int:
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
                ops.append(op)
        elif isinstance(op, Step):
            if op.rows is None:
                ops.append(op)
            elif rows := tuple(row - (row > gone) for row in op.rows if row != gone):
                ops.append(Step(op.count, rows))
        elif op.submission != gone:
            ops.append(msgspec.structs.replace(op, submission=op.submission - (op.submission > gone)))
    return with_ops(schedule, ops)


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


def resized(request: Request, prompt: int | None = None, new: int | None = None) -> Request:
    """A shorter prompt (its beginning) and a smaller budget; never longer, and never less than one token of each."""
    length = len(request.prompt) if prompt is None else min(max(prompt, 1), len(request.prompt))
    budget = request.max_new_tokens if new is None else min(max(new, 1), request.max_new_tokens)
    return msgspec.structs.replace(request, prompt=request.prompt[:length], max_new_tokens=budget)


def ends(request: Request) -> Request:
    """Only the first and the last token of the prompt."""
    return msgspec.structs.replace(request, prompt=request.prompt[:1] + request.prompt[1:][-1:])


def plain(request: Request) -> Request:
    """Without stop tokens, deadline, id and forced tokens."""
    return Request(prompt=request.prompt, max_new_tokens=request.max_new_tokens)


def _less_extra(request: Request) -> Iterator[Request]:
    """Each way to take one extra away, and half of the stop tokens."""
    replace = msgspec.structs.replace
    if request.stop:
        yield replace(request, stop=())
        yield replace(request, stop=request.stop[: len(request.stop) // 2])
        yield replace(request, stop=request.stop[len(request.stop) // 2 :])
    if request.deadline_s is not None:
        yield replace(request, deadline_s=None)
    if request.client_id is not None:
        yield replace(request, client_id=None)
    if request.forced:
        yield replace(request, forced=())


def _simpler_op(op: Op) -> Iterator[Op]:
    if isinstance(op, Wait):
        yield Step()
    elif isinstance(op, Step):
        if op.rows is not None:
            yield Step(op.count)
        for count in (1, 2, op.count // 2, op.count - 1):
            if 0 < count < op.count:
                yield Step(count, op.rows)

