"""Measure: things that are compared take turns, so that a machine's noise falls on all of them.

One round runs each of them once. A ratio is taken within each round, and its median over the rounds is what is told, with
the quartiles beside it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

Cell = str | int | float
Way = Callable[[], int]
"""Does a piece of work once, and returns how many tokens came out of it."""


CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
"""What a second is: one of this process' processor time, all threads together, or one on the wall. On one thread and a quiet
machine they are the same; on a machine that others use, only the first is the program's own."""


class Effort(NamedTuple):
    """How long one comparison may take, and by which clock things are timed.

    Attributes:
        seconds: As many rounds as fit into them, on the wall, but never fewer than `rounds_min` or more than `rounds_max`.
        small: Do as little as shows that everything runs.
        clock: One of `CLOCKS`.
    """

    seconds: float = 10.0
    rounds_min: int = 3
    rounds_max: int = 25
    small: bool = False
    clock: str = "cpu"


class Timing(msgspec.Struct, frozen=True):
    """One way of doing something, once a round: the tokens it gave and the seconds it took."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def rates(self) -> list[float]:
        """Tokens a second, round by round."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def rate(self) -> float:
        """Tokens a second, the median of the rounds."""
        return statistics.median(self.rates)


class Ratio(msgspec.Struct, frozen=True):
    """How much faster one way is than another, in the same rounds.

    Attributes:
        what: The comparison, in words.
        above, below: The names of the two ways; the ratio is of their tokens a second.
        rounds: The ratio in each round.
        least: What it should be at least; None where nothing is asked.
    """

    what: str
    above: str
    below: str
    rounds: tuple[float, ...]
    least: float | None = None

    @property
    def median(self) -> float:
        """What is told."""
        return statistics.median(self.rounds)

    @property
    def holds(self) -> bool:
        """Whether it is what it should be."""
        return self.least is None or self.median >= self.least


class Table(msgspec.Struct, frozen=True):
    """What one part measured on one model.

    Attributes:
        rows: One thing measured a row; the columns are the keys, with their units.
        ratios: Comparisons between rows.
        limits: Figures that have a limit: (what, the figure, at most).
        notes: What one has to know to read it.
    """

    part: str
    model: str
    title: str
    rows: tuple[dict[str, Cell], ...]
    ratios: tuple[Ratio, ...] = ()
    limits: tuple[tuple[str, float, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every ratio and every limit that is asked for is kept."""
        return all(ratio.holds for ratio in self.ratios) and all(figure <= most for _, figure, most in self.limits)


def in_turn(ways: Mapping[str, Way], effort: Effort, prepare: Callable[[], None] | None = None) -> dict[str, Timing]:
    """Runs all ways in turn, every other round backwards, while there is time. Each must have been run before, to be warm.

    Args:
        prepare: What is done before each round, and not timed.
    """
    now = CLOCKS[effort.clock]
    done: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in ways}
    started = time.perf_counter()
    for number in itertools.count(1):
        if prepare is not None:
            prepare()
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            begun = now()
            tokens = ways[name]()
            done[name][1].append(now() - begun)
            done[name][0].append(tokens)
        spent = time.perf_counter() - started
        if number >= effort.rounds_max or (number >= effort.rounds_min and spent * (number + 1) / number > effort.seconds):
            break
    return {name: Timing(tuple(tokens), tuple(seconds)) for name, (tokens, seconds) in done.items()}


def warm(ways: Mapping[str, Way]) -> Mapping[str, Way]:
    """Runs each way once, untimed."""
    for way in ways.values():
        way()
    return ways


def ratio(timings: Mapping[str, Timing], above: str, below: str, what: str, least: float | None = None) -> Ratio:
    """How much faster `above` is than `below`, round by round."""
    pairs = zip(timings[above].rates, timings[below].rates, strict=True)
    return Ratio(what, above, below, tuple(one / other for one, other in pairs), least)


def quartiles(values: tuple[float, ...] | list[float]) -> tuple[float, float]:
    """The first and the third quartile, those of one value being the value itself."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def rate_cells(timing: Timing) -> dict[str, Cell]:
    """The columns that a timing fills."""
    low, high = quartiles(timing.rates)
    return {"tokens/s": timing.rate, "quartiles": f"{low:.0f}..{high:.0f}", "rounds": len(timing.seconds)}
