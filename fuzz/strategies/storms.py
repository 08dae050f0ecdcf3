"""Storms: many small requests in which everything happens beside everything else, in settings that are tight.

Stories and mixes leave room between one event and the next: of the runs of three life-cycle events that can happen, 3,000 of
them showed half. Here ops are drawn one by one, so that arrivals, ends, refusals, chunks and preemptions fall on the same
steps, and in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fuzz.strategies.dice import Dice
from fuzz.strategies.requests import Space
from targets.protocol import Cancel, Knob, Op, Request, Setting, Step, Submit

OPS = (8, 120)
"""From a storm in which a fault shrinks soon to one in which four in a hundred feasible runs of events fit."""
REQUESTS_MAX = 48
TIGHT: dict[str, tuple[Setting, ...]] = {
    "step_tokens_max": (0, 0, 1, 2, 4),
    "context_tokens_max": (256, 16, 8),
    "slots": (1, 2, 3, 4, 8),
    "page_size": (1, 2, 4),
}
"""Values of knobs, where a target has them; all others are drawn as they declare."""
_LATELY = 6
"""A cancel, or a step of some rows, is of the youngest so many."""
_PROMPTS = (0, 1, 1, 2, 2, 3, 5, 7, 9)
_ANSWERS = ((1, 1, 2, 3, 6, 12), (3, 6, 12), (2, 6, 9, 12, 20))
"""Of one storm or another: short ones end beside each other, long ones outgrow a pool that many were let into."""
_IDS = 8
"""As many ids stand in prompts, so that these often begin alike."""


class Weather(NamedTuple):
    """What a storm is like: how likely things are, in eighths, except that `empty` is in sixteenths.

    Attributes:
        steps: Of an op, to be a step; ...
        cancels: ... of another one, to be a cancel.
        named: Of a step, to advance some rows only.
        stops, late, empty: Of a request, to have ids that end it, a deadline, no answer to give. In some storms none has,
            in others most, as three ends in a row want many that end.
        answers: How many tokens they may have.
    """

    steps: int
    cancels: int
    named: int
    stops: int
    late: int
    empty: int
    answers: tuple[int, ...]


def storm(drawn: Dice, space: Space) -> tuple[tuple[Op, ...], dict[str, Setting]]:
    """Ops and settings."""
    dice = drawn.more()
    settings = {
        knob.name: value for knob in space.knobs if knob.drawn and (value := dice.pick(_tight(knob))) != knob.default
    }
    weather = Weather(
        steps=dice.pick((2, 3, 5)),
        cancels=dice.pick((0, 1, 2, 3)),
        named=dice.pick((0, 2, 4, 6)) if space.rows else 0,
        stops=dice.pick((0, 1, 2, 4, 6)),
        late=dice.pick((0, 1, 2, 4, 6)),
        empty=dice.pick((0, 0, 1, 2)),
        answers=dice.pick(_ANSWERS),
    )
    requests: list[Request] = []
    ops: list[Op] = []
    for _ in range(OPS[0] + dice.below(OPS[1] - OPS[0])):
        lately = range(len(requests))[-_LATELY:]
        if lately and dice.below(8) < weather.steps:
            named = dice.below(8) < weather.named
            ops.append(Step(dice.pick((1, 1, 1, 1, 3)), _rows(dice, lately) if named else None))
        elif lately and dice.below(8) < weather.cancels:
            ops.append(Cancel(dice.pick(lately)))
        elif len(requests) < REQUESTS_MAX:
            requests.append(_request(dice, space, weather))
            ops.append(Submit(requests[-1]))
    if space.pooled and any(knob.name == "pool_tokens" for knob in space.knobs):
        settings |= _crowded(dice, requests)
    return tuple(ops), settings


def _crowded(dice: Dice, requests: Sequence[Request]) -> dict[str, Setting]:
    """A pool that one of the larger half just fits into, so that few are refused and those that run push each other out."""
    sizes = sorted(len(request.prompt) + request.max_new_tokens for request in requests)
    largest = sizes[-1 - dice.below((len(sizes) + 1) // 2)]
    return {
        "pool_tokens": max(1, largest + dice.pick((0, 1, 2, 4, 8))),
        "page_size": dice.pick((1, 2, 4)),
        "slots": dice.pick((8, 5, 4, 3)),
    }


def _tight(knob: Knob) -> tuple[Setting, ...]:
    """The values that make a knob tight, where it takes them; else all of its own."""
    low, high = (-math.inf if knob.low is None else knob.low), (math.inf if knob.high is None else knob.high)
    taken = tuple(value for value in TIGHT.get(knob.name, ()) if isinstance(value, int) and low <= value <= high)
    return taken or knob.values


def _rows(dice: Dice, lately: Sequence[int]) -> tuple[int, ...]:
    """One to three of these."""
    return tuple(sorted({dice.pick(lately) for _ in range(3)}))


def _request(dice: Dice, space: Space, weather: Weather) -> Request:
    """A small request."""
    return Request(
        prompt=tuple(space.ordinary_ids[dice.below(_IDS)] for _ in range(dice.pick(_PROMPTS))),
        max_new_tokens=0 if dice.below(16) < weather.empty else dice.pick(weather.answers),
        stop=space.ordinary_ids[:: dice.pick((2, 3, 8))] if dice.below(8) < weather.stops else (),
        deadline_s=dice.below(8) if dice.below(8) < weather.late else None,
    )
