"""Storms: many small requests in which everything happens beside everything else, in settings that are tight.

Stories and mixes leave room between one event and the next: of the runs of three life-cycle events that can happen, 3,000 of
them showed half. Here arrivals, ends, refusals, chunks and preemptions fall on the same steps.
"""

from __future__ import annotations

import math

from fuzz.strategies.dice import Dice
from fuzz.strategies.lives import Life, Turn
from fuzz.strategies.requests import Space
from targets.protocol import Knob, Request, Setting

REQUESTS_MAX = 24
TIGHT: dict[str, tuple[Setting, ...]] = {
    "step_tokens_max": (0, 0, 1, 2, 4),
    "context_tokens_max": (256, 16, 8),
    "slots": (1, 2, 3, 4, 8),
    "page_size": (1, 2, 4),
}
"""Values of knobs, where a target has them; all others are drawn as they declare."""
CHANCES = (0, 1, 2, 4, 6)
"""How many in eight of a storm's requests are cancelled, have stop ids, or a deadline: in some storms none, in others most,
as three ends in a row want many that end."""
_PROMPTS = (0, 1, 1, 2, 2, 3, 5, 7, 9)
_ANSWERS = (1, 1, 2, 3, 6, 12)
_IDS = 8
"""As many ids stand in prompts, so that these often begin alike."""


def storm(drawn: Dice, space: Space) -> tuple[list[Life], list[Turn], dict[str, Setting]]:
    """Lives, turns and settings."""
    dice = drawn.more()
    settings = {
        knob.name: value for knob in space.knobs if knob.drawn and (value := dice.pick(_tight(knob))) != knob.default
    }
    named = space.rows and dice.below(4) == 0
    count, steps = 4 + dice.below(REQUESTS_MAX - 3), 1 + dice.below(20)
    chances = (*(dice.pick(CHANCES) for _ in range(3)), dice.below(3))
    lives = [_life(dice, space, steps, chances) for _ in range(count)]
    if space.pooled and any(knob.name == "pool_tokens" for knob in space.knobs):
        settings |= _crowded(dice, lives)
    turns = [Turn(1 + dice.below(steps), 1 + dice.below(6), (dice.below(count), dice.below(count)))] if named else []
    return lives, turns, settings


def _crowded(dice: Dice, lives: list[Life]) -> dict[str, Setting]:
    """A pool that one of the larger half just fits into, so that few are refused and those that run push each other out."""
    sizes = sorted(len(life.request.prompt) + life.request.max_new_tokens for life in lives)
    largest = sizes[-1 - dice.below(len(sizes) // 2)]
    return {
        "pool_tokens": max(1, largest + dice.pick((0, 1, 2, 4, 8))),
        "page_size": dice.pick((1, 2, 4)),
        "slots": dice.pick((8, 4, 3, 2)),
    }


def _tight(knob: Knob) -> tuple[Setting, ...]:
    """The values that make a knob tight, where it takes them; else all of its own."""
    low, high = (-math.inf if knob.low is None else knob.low), (math.inf if knob.high is None else knob.high)
    taken = tuple(value for value in TIGHT.get(knob.name, ()) if isinstance(value, int) and low <= value <= high)
    return taken or knob.values


def _life(dice: Dice, space: Space, steps: int, chances: tuple[int, ...]) -> Life:
    """A small request; each of its extras is as likely as the storm has it, in eighths."""
    cancelled, stopped, late, empty = (dice.below(8) < chance for chance in chances)
    request = Request(
        prompt=tuple(space.ordinary_ids[dice.below(_IDS)] for _ in range(dice.pick(_PROMPTS))),
        max_new_tokens=0 if empty and dice.below(2) else dice.pick(_ANSWERS),
        stop=space.ordinary_ids[:: dice.pick((2, 3, 8))] if stopped else (),
        deadline_s=dice.below(8) if late else None,
    )
    return Life(request, arrival=dice.below(steps), cancel_after=dice.below(8) if cancelled else None)
