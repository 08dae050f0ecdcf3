"""Smaller: numbers among the settings turned down, together with the prompts and answers that they allow to be shorter.

What fills a page is long as long as the page is, and where a pool is too small for all, fewer tokens find room in it: there
neither the number nor the tokens can be made smaller alone. No knob is known by name here: a *number* is a knob that is
drawn, has a lowest value and is not the run's own. Pure functions; `sort_key` decides what is simpler.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator

from fuzz.edits import drop_request, ends, later, resized, retold, with_ops, with_settings
from targets.protocol import Knob, Schedule, Submit, submissions, with_request, with_requests

Measure = Callable[[Schedule], int]
"""What the requests of a schedule come to, in tokens, in some sense."""

SHORT = 4
"""Tokens that a request comes to, prompt and answer, up to which smaller numbers are not worth a try."""
SHAPES = ((1, 1), (2, 1), (1, 2), (1, 3), (2, 3), (4, 1), (4, 4))
"""Prompt and answer, at most."""
CHANCES = 12
"""Draws of other ids, where ids matter."""
_ABOVE_LOWEST = (0, 1, 3)


def largest(schedule: Schedule) -> int:
    """Tokens that the largest request comes to, prompt and answer."""
    return max(len(request.prompt) + request.max_new_tokens for request in submissions(schedule))


def crowd(schedule: Schedule) -> int:
    """Tokens of all prompts together, and one of each answer: with so much room all can begin."""
    return sum(len(request.prompt) + 1 for request in submissions(schedule))


def numbers(knobs: tuple[Knob, ...], fixed: Collection[str]) -> tuple[Knob, ...]:
    """The knobs that count something and may be turned."""
    return tuple(knob for knob in knobs if knob.drawn and knob.low is not None and knob.name not in fixed)


def fitted(schedule: Schedule, turnable: tuple[Knob, ...], measure: Measure) -> Schedule:
    """The schedule with the numbers that it sets no larger than what its requests come to."""
    room = measure(schedule)
    counting = {knob.name: max(room, knob.low or 0) for knob in turnable if knob.name in schedule.settings}
    return with_settings(schedule, {name: min(int(schedule.settings[name]), most) for name, most in counting.items()})


def lowered(schedule: Schedule, turnable: tuple[Knob, ...], knob: Knob) -> Iterator[tuple[Schedule, Measure]]:
    """One number at its lowest, or little more, and those that are set fitted; with the measure that they were fitted by."""
    value, low = int(schedule.settings.get(knob.name, knob.default)), knob.low or 0
    for above in _ABOVE_LOWEST:
        for measure in (largest, crowd) if above == 0 else (largest,):
            if low + above < value:
                yield fitted(with_settings(schedule, {knob.name: low + above}), turnable, measure), measure


def shorter(schedule: Schedule) -> Iterator[Schedule]:
    """All requests at a few tokens, at most; at their two ends; without half; and none longer than half of the longest.

    What is left of a half is the beginning and what comes behind the middle: there pages meet that are alike by themselves.
    """
    prompt = max(len(request.prompt) for request in submissions(schedule)) // 2
    new = max(request.max_new_tokens for request in submissions(schedule)) // 2
    for shape in SHAPES:
        yield _resized(schedule, *shape)
    yield with_requests(schedule, lambda _, request: ends(request))
    yield with_requests(
        schedule, lambda _, request: retold(request, request.prompt[:1] + request.prompt[1:][len(request.prompt) // 2 - 1 :])
    )
    for cap in ((prompt, new), (prompt, None), (None, new)):
        yield _resized(schedule, *cap)


def remainders(schedule: Schedule, turnable: tuple[Knob, ...]) -> Iterator[Schedule]:
    """Where a number is set that goes several times into prompts: as much of each as leaves the same over, once."""
    longest = max(len(request.prompt) for request in submissions(schedule))
    for knob in turnable:
        number = int(schedule.settings.get(knob.name, 0))
        if 1 < number < longest - number:
            yield with_requests(
                schedule,
                lambda _, request: resized(request, number + 1 + (len(request.prompt) - 1) % number),  # noqa: B023
            )


def pressed(schedule: Schedule, turnable: tuple[Knob, ...]) -> Iterator[Schedule]:
    """Where a number is set: requests of a few tokens that it just fits, and each number in turn at its lowest."""
    if largest(schedule) <= SHORT or not any(knob.name in schedule.settings for knob in turnable):
        return
    for whole in (with_ops(schedule, [op for op in schedule.ops if isinstance(op, Submit)]), schedule):
        few = _resized(whole, 1, SHORT - 1)
        for knob in turnable:
            yield fitted(with_settings(few, {knob.name: knob.low or 0}), turnable, largest)


def fewer(schedule: Schedule, turnable: tuple[Knob, ...]) -> Iterator[Schedule]:
    """A request less where something makes up for it.

    A step before the last one, which it held up; or a number at the least that is drawn, as a smaller pool needs fewer to
    fill it.
    """
    if len(submissions(schedule)) < 3:
        return
    for submission in reversed(range(len(submissions(schedule)))):
        yield later(drop_request(schedule, submission))
    for knob in turnable:
        least = min(value for value in knob.values if isinstance(value, int))
        if schedule.settings.get(knob.name) != least:
            for submission in reversed(range(len(submissions(schedule)))):
                yield with_settings(drop_request(schedule, submission), {knob.name: least})


def tighter(schedule: Schedule, turnable: tuple[Knob, ...]) -> Iterator[Schedule]:
    """A number that is set one less, and a token less: of all prompts, of all answers, of each."""
    for knob in turnable:
        value = int(schedule.settings.get(knob.name, 0))
        if value > (knob.low or 0):
            less = with_settings(schedule, {knob.name: value - 1})
            yield with_requests(less, lambda _, request: resized(request, len(request.prompt) - 1))
            yield with_requests(less, lambda _, request: resized(request, new=request.max_new_tokens - 1))
            for submission, request in enumerate(submissions(schedule)):
                yield with_request(less, submission, resized(request, len(request.prompt) - 1))
                yield with_request(less, submission, resized(request, new=request.max_new_tokens - 1))


def coincidences(schedule: Schedule, turnable: tuple[Knob, ...]) -> Iterator[Schedule]:
    """Short prompts of other ids, and each number in turn at its lowest: what depends on ids by chance, as hashes do."""
    ids = sorted({token for request in submissions(schedule) for token in request.prompt})
    for chance in map(random.Random, range(CHANCES if largest(schedule) > SHORT else 0)):
        prompts = [tuple(chance.choices(ids, k=3)) for _ in submissions(schedule)]
        others = with_requests(schedule, lambda which, request: retold(request, prompts[which]))  # noqa: B023
        for knob in turnable:
            yield with_settings(_resized(others, None, 1), {knob.name: knob.low or 0})


def _resized(schedule: Schedule, prompt: int | None, new: int | None) -> Schedule:
    """The schedule with no prompt and no answer longer than that."""
    return with_requests(schedule, lambda _, request: resized(request, prompt, new))
