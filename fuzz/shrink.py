"""Shrink: from a failing schedule to one from which nothing can be taken away without losing the same failure.

Hypothesis does not do this: its shrinker took 58 to 1,254 evaluations and twice stuck at five and six requests. Ours knows
what a schedule is. It first tries the large steps that usually work (the victim alone, the victim and one other, everything
at its smallest), then single reductions until none is left: `reductions` defines both the last pass and 1-minimality.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from fuzz.edits import (
    apart,
    brief,
    decisive,
    drop_request,
    ends,
    extra_count,
    id_count,
    keep_requests,
    less_extra,
    plain,
    reductions,
    resized,
    retold,
    simpler_op,
    sooner,
    step_count,
    with_ops,
    without_setting,
)
from fuzz.smaller import (
    SHORT,
    Measure,
    coincidences,
    fewer,
    fitted,
    largest,
    lowered,
    numbers,
    pressed,
    remainders,
    shorter,
    tighter,
)
from oracle.finding import Finding
from targets.protocol import Knob, Request, Schedule, Step, Submit, Wait, submissions, with_request, with_requests

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
    extras = sum(map(extra_count, requests)) + sum(
        isinstance(op, Wait) or (isinstance(op, Step) and op.rows is not None) for op in schedule.ops
    )
    return (
        len(requests),
        sum(len(request.prompt) + request.max_new_tokens for request in requests),
        len(schedule.ops),
        steps,
        len(schedule.settings),
        extras,
        sum(map(id_count, requests)),
        sum(sum(request.prompt) for request in requests),
    )


async def shrink(
    schedule: Schedule, finding: Finding, knobs: tuple[Knob, ...], fixed: Collection[str], evaluate: Evaluate
) -> Shrunk:
    """Shrinks a failing schedule; the result shows a finding of the same kind by the same check.

    Args:
        fixed: Settings that are the run's own (precision, device, what the user set) and no part of the search.
    """
    shrinker = _Shrinker(schedule, finding, knobs, fixed, evaluate)
    await shrinker.run()
    return Shrunk(shrinker.best, shrinker.finding, shrinker.evaluations, shrinker.minimal)


class _Shrinker:
    """The search itself; `best` always fails."""

    def __init__(
        self, schedule: Schedule, finding: Finding, knobs: tuple[Knob, ...], fixed: Collection[str], evaluate: Evaluate
    ) -> None:
        self.best = schedule
        self.finding = finding
        self.numbers = numbers(knobs, fixed)
        self.counts = numbers(knobs, ())
        self.fixed = fixed
        self.evaluate = evaluate
        self.evaluations = 0
        self.minimal = False
        self._tried: dict[bytes, bool] = {schedule.key(): True}
        self._immovable: set[str] = set()
        self._made: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Pressure once, rounds of passes while any of them helps, then every single reduction as proof."""
        for candidates in (self._requests, self._ops, self._settings, self._pressed):
            await self._all(candidates())
        improved = True
        while improved:
            improved = self._is_news("requests") and await self._all(self._requests())
            for candidates in (self._ops, self._settings, self._lengths, self._extras, self._steps):
                improved |= await self._all(candidates())
            for again in (self._token_ids, self._apart):
                improved = improved or await self._over_and_over(again)
            improved = improved or (self._is_news("fewer") and await self._any(self._fewer()))
            improved = improved or await self._over_and_over(self._tighter)
            improved = improved or await self._sideways()
            for last in (self._traded, self._coincidences, self._reductions):  # the last one tried is the proof
                improved = improved or await self._any(last())
        self.minimal = self.evaluations < EVALUATIONS_MAX

    def _is_news(self, what: str) -> bool:
        """Whether a pass over requests was not made yet for as many as there are now.

        Such a pass is long, and what it did not find it finds no more only because a prompt is shorter; the proof at the end
        tries each request once more.
        """
        made = what, len(submissions(self.best))
        is_news = made not in self._made
        self._made.add(made)
        return is_news

    async def _all(self, candidates: Iterator[Schedule]) -> bool:
        improved = False
        for candidate in candidates:
            improved |= await self._try(candidate)
        return improved

    async def _any(self, candidates: Iterator[Schedule]) -> bool:
        for candidate in candidates:
            if await self._try(candidate):
                return True
        return False

    async def _over_and_over(self, candidates: Callable[[], Iterator[Schedule]]) -> bool:
        """One pass as long as it helps: where a token less is to be had, the next one often is as well."""
        improved = False
        while await self._any(candidates()):
            improved = True
        return improved

    async def _try(self, candidate: Schedule) -> bool:
        """Takes a candidate that is simpler than the best and fails in the same way."""
        if candidate.key() in self._tried or sort_key(candidate) >= sort_key(self.best):
            return False
        finding = await self._look(candidate)
        if finding is None:
            return False
        self.best, self.finding = candidate, finding
        return True

    async def _look(self, candidate: Schedule) -> Finding | None:
        """What a candidate that was not tried before shows; None as well where the evaluations ran out."""
        if self.evaluations >= EVALUATIONS_MAX:
            return None
        self.evaluations += 1
        finding = await self.evaluate(candidate)
        self._tried[candidate.key()] = finding is not None
        return finding

    async def _fails(self, candidate: Schedule) -> bool:
        """Whether a candidate, simpler or not, fails in the same way; it is not taken."""
        if candidate.key() not in self._tried:
            await self._look(candidate)
        return self._tried.get(candidate.key(), False)

    # The passes below read `self.best` anew after every candidate: each builds on what the one before it achieved.

    def _requests(self) -> Iterator[Schedule]:
        """The victim alone, also with single steps, as it waits for nobody then; parts; the victim and another; one less."""
        victim = self.finding.submission
        if victim is not None and len(submissions(self.best)) > 1:
            alone = keep_requests(self.best, {victim})
            yield alone
            for more in ([], [Step()]):  # others went on when it had ended, and so did the steps
                if len(submissions(self.best)) > 1:
                    yield with_ops(alone, [*brief(alone).ops, *more])
        size = len(submissions(self.best)) // 2
        while size > 2:
            for first in reversed(range(0, len(submissions(self.best)), size)):
                kept = {*range(first), *range(first + size, len(submissions(self.best)))}
                if kept:
                    yield keep_requests(self.best, kept)
            size //= 2
        if victim is not None and len(submissions(self.best)) > 3:
            for other in (*self.finding.sources, *range(len(submissions(self.best)))):
                if other != victim and len(submissions(self.best)) > 2:
                    yield keep_requests(self.best, {victim, other})
        for submission in reversed(range(len(submissions(self.best)))):
            if len(submissions(self.best)) > 1 and submission < len(submissions(self.best)):
                yield drop_request(self.best, submission)

    def _ops(self) -> Iterator[Schedule]:
        """All requests at once and nothing else; then one op less at a time, the last first."""
        yield with_ops(self.best, [op for op in self.best.ops if isinstance(op, Submit)])
        for index in reversed(range(len(self.best.ops))):
            if index < len(self.best.ops) and not isinstance(self.best.ops[index], Submit):
                yield with_ops(self.best, [*self.best.ops[:index], *self.best.ops[index + 1 :]])

    def _settings(self) -> Iterator[Schedule]:
        """Every setting at its default, then each."""
        kept = {name: value for name, value in self.best.settings.items() if name in self.fixed}
        yield msgspec.structs.replace(self.best, settings=kept)
        for name in tuple(self.best.settings):
            if name not in self.fixed:
                yield without_setting(self.best, name)

    def _lengths(self) -> Iterator[Schedule]:
        """All prompts and answers at one token, each prompt another; then each on its own at one, two, half, one less.

        A prompt is cut at its end, and to its two ends, which keeps both a shared beginning and what comes behind it. Where
        penalties are asked for, strong ones may make up for what is cut.
        """
        yield with_requests(self.best, lambda which, request: resized(retold(request, (which + 1,)), 1, 1))
        yield with_requests(self.best, lambda which, request: retold(request, (which + 1,)))
        yield with_requests(self.best, lambda _, request: resized(request, 1, 1))
        yield with_requests(self.best, lambda _, request: resized(ends(request), 2, 1))
        yield from remainders(self.best, self.counts)
        yield with_requests(self.best, lambda _, request: resized(request, 2, 2))
        yield with_requests(self.best, lambda _, request: ends(request))
        if any(decisive(request) != request for request in submissions(self.best)):
            for prompt, new in ((1, 2), (2, 2), (1, 3)):
                yield with_requests(self.best, lambda _, request: resized(decisive(request), prompt, new))  # noqa: B023
        for submission in range(len(submissions(self.best))):
            yield self._resize(submission, prompt=1)
            yield self._resize(submission, new=1)
            yield self._resize(submission, prompt=2)
            yield self._resize(submission, new=2)
            yield self._resize(submission, prompt=len(self._request(submission).prompt) // 2)
            yield self._resize(submission, new=self._request(submission).max_new_tokens // 2)
            yield with_request(self.best, submission, ends(self._request(submission)))
            for _ in range(8):
                yield self._resize(submission, prompt=len(self._request(submission).prompt) - 1)
                yield self._resize(submission, new=self._request(submission).max_new_tokens - 1)

    def _request(self, submission: int) -> Request:
        return submissions(self.best)[submission]

    def _resize(self, submission: int, prompt: int | None = None, new: int | None = None) -> Schedule:
        return with_request(self.best, submission, resized(self._request(submission), prompt, new))

    def _extras(self) -> Iterator[Schedule]:
        """Plain requests; then each extra on its own."""
        yield with_requests(self.best, lambda _, request: plain(request))
        for submission in range(len(submissions(self.best))):
            yield with_request(self.best, submission, plain(self._request(submission)))
            for less in less_extra(self._request(submission)):
                yield with_request(self.best, submission, less)

    def _steps(self) -> Iterator[Schedule]:
        """Single steps for everyone, in place of waits, named rows and many steps."""
        for index in range(len(self.best.ops)):
            for op in simpler_op(self.best.ops[index]) if index < len(self.best.ops) else ():
                yield with_ops(self.best, [*self.best.ops[:index], op, *self.best.ops[index + 1 :]])
            for divisor in (1, 2):
                if count := step_count(self.best, index) // divisor:
                    yield from sooner(self.best, index, count)
            if step_count(self.best, index):
                yield from sooner(self.best, index, 1)

    def _pressed(self) -> Iterator[Schedule]:
        """A few tokens under pressure: early, because where something is short on purpose all other ways are long."""
        yield from pressed(self.best, self.numbers)

    def _fewer(self) -> Iterator[Schedule]:
        """A request less, and a step or a number that makes up for it."""
        yield from fewer(self.best, self.numbers)

    def _apart(self) -> Iterator[Schedule]:
        """A step between requests in place of whatever long prompts and answers make one wait for another."""
        if largest(self.best) > SHORT:
            yield with_requests(apart(self.best), lambda _, request: resized(request, 1, 1))
            yield with_requests(apart(self.best), lambda _, request: resized(ends(request), 2, 1))

    def _traded(self) -> Iterator[Schedule]:
        """A prompt of one token and a longer answer, where a long prompt only passes the time."""
        for submission, request in enumerate(submissions(self.best)):
            for more in (1, len(request.prompt) // 3):
                longer = msgspec.structs.replace(resized(request, 1), max_new_tokens=request.max_new_tokens + more)
                yield with_request(self.best, submission, longer)

    def _tighter(self) -> Iterator[Schedule]:
        """A token less, and a number one less with it."""
        yield from tighter(self.best, self.numbers)

    async def _sideways(self) -> bool:
        """Numbers turned down one by one, as long as the failure stays; then shorter prompts and answers with all of them.

        A smaller number by itself is no simpler, so it is kept only together with what it makes shorter; whether it was
        needed is for the pass over settings to say.
        """
        base = self.best
        measure: Measure = largest
        for knob in self.numbers if largest(base) > SHORT else ():
            for moved, fit in () if knob.name in self._immovable else lowered(base, self.numbers, knob):
                if await self._fails(moved):
                    base, measure = moved, fit
                    break
            else:
                self._immovable.add(knob.name)
        if base is self.best:
            return False
        less = (*remainders(base, self.counts), *shorter(base))
        return await self._any(fitted(each, self.numbers, measure) for each in less)

    def _coincidences(self) -> Iterator[Schedule]:
        """Other ids, where their pattern alone does not make the failure."""
        if not self._tried.get(self._renamed().key(), True):
            yield from coincidences(self.best, self.numbers)

    def _reductions(self) -> Iterator[Schedule]:
        """Every single one."""
        yield from reductions(self.best, self.fixed)

    def _token_ids(self) -> Iterator[Schedule]:
        """Small ids with the same pattern of equal ones; then one and the same id all through each prompt."""
        yield self._renamed()
        for submission in range(len(submissions(self.best))):
            request = self._request(submission)
            same = request.prompt[:1] * len(request.prompt)
            yield with_request(self.best, submission, msgspec.structs.replace(request, prompt=same))

    def _renamed(self) -> Schedule:
        """Small ids with the same pattern of equal ones."""
        names: dict[int, int] = {}
        for request in submissions(self.best):
            for token in request.prompt:
                names.setdefault(token, len(names) + 1)
        return with_requests(self.best, lambda _, request: retold(request, tuple(names[token] for token in request.prompt)))
