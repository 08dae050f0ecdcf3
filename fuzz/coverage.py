"""Coverage: which grams of life-cycle events were seen, of those that are feasible, and how many there may be still.

The sample is of schedules, not of grams: those of one schedule depend on each other, so what counts is in how many schedules
each was seen. From the grams that came in one schedule only, and in two, follow Good and Turing's estimate of what the next
schedule brings, and Chao's of how many this way of drawing would bring in the end (A. Chao, Biometrics 43, 1987, "Chao2"):
a lower bound, and no more than that. What is feasible and beyond it wants other schedules, not more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fuzz.feasible import SIZES, feasible
from fuzz.lifecycle import Gram, grams, happenings
from targets.protocol import Cycling, Factory, LifeCycle, Schedule, Setting, Trace


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The coverage of grams of one size.

    Attributes:
        seen: Grams that were seen and are feasible; where it is not known what is, all that were seen.
        feasible: Grams that there are; None where the target does not say how its requests may live.
        never: Those that were never seen.
        unforeseen: Grams that were seen and should not be feasible, with the number of schedules that showed them.
        new_a_schedule: As many new ones are to be expected of the next schedule.
        within_reach: At least as many more would come if schedules were drawn like this for ever.
    """

    seen: int
    feasible: int | None
    never: tuple[Gram, ...]
    unforeseen: dict[Gram, int]
    new_a_schedule: float
    within_reach: float


@dataclass
class Coverage:
    """What a run has seen.

    Attributes:
        cycles: How requests may live in the target; None where it does not say.
        seen: In how many schedules each gram was seen, by size.
    """

    cycles: tuple[LifeCycle, ...] | None = None
    schedules: int = 0
    seen: dict[int, Counter[Gram]] = field(default_factory=lambda: {size: Counter() for size in SIZES})

    def count(self, schedule: Schedule, trace: Trace) -> None:
        """Counts one schedule's grams."""
        self.schedules += 1
        events = happenings(schedule, trace)
        for size, counter in self.seen.items():
            counter.update(grams(events, size))

    def figures(self, size: int) -> Figures:
        """Where it stands, for grams of this size. The first time it takes some tenths of a second to enumerate them."""
        seen = self.seen[size]
        there = None if self.cycles is None else feasible(self.cycles, size)
        unforeseen = {} if there is None else {gram: seen[gram] for gram in sorted(seen.keys() - there)}
        return Figures(
            seen=len(seen) - len(unforeseen),
            feasible=None if there is None else len(there),
            never=() if there is None else tuple(sorted(there - seen.keys())),
            unforeseen=unforeseen,
            new_a_schedule=new_a_schedule(seen, self.schedules),
            within_reach=within_reach(seen, self.schedules),
        )


def cycles_of(factory: Factory, settings: Mapping[str, Setting]) -> tuple[LifeCycle, ...] | None:
    """How requests may live in a factory's targets, under all settings that a run with these fixed may draw."""
    if not factory.control.life_cycles:
        return None
    assert isinstance(factory, Cycling), "control.life_cycles promises a method life_cycles"
    values = {knob.name: knob.values if knob.drawn else (knob.default,) for knob in factory.knobs}
    return factory.life_cycles({**values, **{name: (value,) for name, value in settings.items()}})


def new_a_schedule(seen: Mapping[Gram, int], schedules: int) -> float:
    """Good and Turing: the next schedule brings as many new ones as there are that came once, by the schedule."""
    return _that_came(seen, 1) / schedules if schedules else 0.0


def within_reach(seen: Mapping[Gram, int], schedules: int) -> float:
    """Chao2, with the correction for its bias: at least so many more can be seen by schedules that are drawn like these."""
    once, twice = _that_came(seen, 1), _that_came(seen, 2)
    return (schedules - 1) / schedules * once * max(0, once - 1) / (2 * (twice + 1)) if schedules else 0.0


def _that_came(seen: Mapping[Gram, int], times: int) -> int:
    return sum(count == times for count in seen.values())
