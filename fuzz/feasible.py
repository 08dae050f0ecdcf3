"""Which grams are feasible: all that the automaton of a life cycle can say, enumerated, and cached."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from fuzz.automaton import REQUESTS, Automaton, State
from fuzz.lifecycle import Gram, Turn, gram
from targets.protocol import LifeCycle

SIZES = tuple(range(2, REQUESTS + 1))
Masks = tuple[int, ...]
"""Of each request the events in which it takes part, as bits: the i-th event is bit i."""


class Begun(NamedTuple):
    """The first events of a gram, and where they may lead."""

    turns: tuple[str, ...]
    masks: Masks
    state: State


def feasible(cycles: Collection[LifeCycle], size: int) -> frozenset[Gram]:
    """Every gram of this size, one of SIZES, that correct targets with these life cycles can be made to show.

    A step late, results leave more open: what can be seen where they come at once can be seen there too.
    """
    late = {cycle for cycle in cycles if cycle.pipelined}
    at_once = {cycle for cycle in cycles if msgspec.structs.replace(cycle, pipelined=True) not in late}
    return frozenset[Gram]().union(*(enumerated(cycle)[size] for cycle in late | at_once))


@functools.cache
def enumerated(cycle: LifeCycle) -> dict[int, frozenset[Gram]]:
    """The feasible grams of one life cycle, of each size."""
    automaton = Automaton(cycle)
    begun = {Begun((), (0,) * REQUESTS, state) for state in automaton.reached()}
    for _ in range(REQUESTS - 1):
        begun = {further for each in begun for further in _further(automaton, each)}
    last = functools.cache(lambda state: frozenset((turn, bits) for turn, bits, _ in automaton.next(state)))
    done = {(each.turns, each.masks, last(each.state)) for each in begun}
    longest = {
        ((*turns, turn), tuple(sorted(_with(masks, bits, len(turns)))))
        for turns, masks, ends in done
        for turn, bits in ends
        if _may_follow(turns, turn)
    }
    # Something always comes next, if only another client: each shorter one is the beginning of a longest one.
    return {size: frozenset(_spelt(turns[:size], masks) for turns, masks in longest) for size in SIZES}


def _further(automaton: Automaton, begun: Begun) -> Iterator[Begun]:
    """One event more, in every way. Who stands where among the requests does not matter: they are put in order."""
    index = len(begun.turns)
    for turn, bits, then in automaton.next(begun.state):
        if _may_follow(begun.turns, turn):
            places = sorted(zip(then.lives, _with(begun.masks, bits, index), strict=True))
            lives, masks = zip(*places, strict=True)
            yield Begun((*begun.turns, turn), masks, State(then.phase, then.joined, then.flying, lives))


def _may_follow(turns: tuple[str, ...], turn: str) -> bool:
    """TOKENS are all that follow each other: no two stand side by side."""
    return turn != Turn.TOKENS or turns[-1:] != (Turn.TOKENS,)


def _with(masks: Masks, bits: int, index: int) -> list[int]:
    """The masks when these requests take part in the event with that index as well."""
    return [mask | (bits >> who & 1) << index for who, mask in enumerate(masks)]


def _spelt(turns: tuple[str, ...], masks: Masks) -> Gram:
    """In words."""
    return gram(
        [(turn, tuple(who for who, mask in enumerate(masks) if mask >> index & 1)) for index, turn in enumerate(turns)]
    )
