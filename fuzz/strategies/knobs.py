"""Settings drawn from what a target declares."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz.strategies.dice import Dice, dice
from targets.protocol import Knob, Setting

TURNED_MAX = 3


def knobs(declared: tuple[Knob, ...]) -> st.SearchStrategy[dict[str, Setting]]:
    """Settings that differ from the defaults in a few knobs; only the different ones are in the dict."""
    return dice(2 * (1 + 2 * TURNED_MAX)).map(lambda drawn: settings(drawn, declared))


def settings(drawn: Dice, declared: tuple[Knob, ...]) -> dict[str, Setting]:
    """Up to three knobs, each at a value that is not its default."""
    turnable = [knob for knob in declared if knob.drawn and len(knob.values) > 1]
    found: dict[str, Setting] = {}
    for _ in range(drawn.below(TURNED_MAX + 1) if turnable else 0):
        knob = drawn.pick(turnable)
        found[knob.name] = drawn.pick([value for value in knob.values if value != knob.default])
    return found
