"""Bench coverage: which life-cycle events the schedules of a run bring about. They are played, and nothing is judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from fuzz.conductor import play, run_trio
from fuzz.coverage import Coverage, Figures, cycles_of
from fuzz.feasible import SIZES
from fuzz.report import format_grams
from fuzz.search import drawn
from fuzz.strategies import Space
from targets.protocol import Factory, Schedule, Setting


class Measured(msgspec.Struct, frozen=True):
    """The coverage after so many schedules, by the size of grams."""

    schedules: int
    grams: dict[str, Figures]


def measured(factory: Factory, counts: tuple[int, ...], seed: int, settings: Mapping[str, Setting]) -> Iterator[Measured]:
    """The coverage after so many schedules each time, as a run with this seed draws them; counts ascend."""
    coverage = Coverage(cycles_of(factory, settings))
    generated = drawn(Space.of(factory), seed)
    for count in counts:
        for schedule in islice(generated, count - coverage.schedules):
            asked = msgspec.structs.replace(schedule, settings={**schedule.settings, **settings})
            run_trio(_count, factory, asked, coverage)
        yield Measured(count, {str(size): coverage.figures(size) for size in SIZES})


async def _count(factory: Factory, schedule: Schedule, coverage: Coverage) -> None:
    coverage.count(schedule, await play(factory, schedule, audits=False))


def format_measured(one: Measured) -> str:
    """A line for each size."""
    return "\n".join(f"{one.schedules:>6} schedules: {format_grams(size, one.grams[str(size)])}" for size in SIZES)
