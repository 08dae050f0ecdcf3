"""Requests: prompts drawn as (length, place), so that a long prompt costs no more draws than a short one."""

from __future__ import annotations

import random
from functools import cached_property

import msgspec
from hypothesis import strategies as st

from fuzz.strategies.dice import Dice, dice
from targets.protocol import Factory, Knob, Request, Setting

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 18, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129)
"""Prompt lengths: small ones, and the multiples of 16 with their neighbours, where windows, pages and chunks end."""
ANSWERS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 24)
"""New tokens: a budget of exactly one and two often, and enough to outlive a neighbour."""
GAPS = (0, 1, 2, 3, 5)
"""Steps from one arrival to the next."""
_TEXT = 4096


class Space(msgspec.Struct, frozen=True, dict=True):
    """What requests and schedules are drawn from: a target's vocabulary, knobs and limits."""

    vocabulary: int
    special_ids: tuple[int, ...] = ()
    knobs: tuple[Knob, ...] = ()
    rows: bool = False
    sampling: bool = False
    shares: bool = False
    salts: bool = False
    long: bool = True
    in_a_row: int = 1

    @classmethod
    def of(cls, factory: Factory) -> Space:
        """The space of one target."""
        control = factory.control
        return cls(
            factory.vocabulary,
            factory.special_ids,
            factory.knobs,
            control.rows,
            control.sampling,
            control.shares,
            control.salts,
            in_a_row=control.in_a_row,
        )

    @cached_property
    def pooled(self) -> bool:
        """Whether requests share a pool of pages that may be too small for all of them."""
        names = {knob.name for knob in self.knobs}
        return {"pool_tokens", "page_size"} <= names or "num_blocks" in names

    @cached_property
    def guesses(self) -> tuple[Setting, ...]:
        """How many tokens of an answer may be guessed at once, where the target does so."""
        return next((knob.values[1:] for knob in self.knobs if knob.name == "speculate"), ())

    @cached_property
    def ordinary_ids(self) -> tuple[int, ...]:
        """Every id without a meaning of its own."""
        return tuple(token for token in range(self.vocabulary) if token not in self.special_ids)

    @cached_property
    def text(self) -> tuple[int, ...]:
        """A fixed text of ordinary ids; a prompt is a piece of it."""
        return tuple(random.Random(0).choices(self.ordinary_ids, k=_TEXT))

    def piece(self, length: int, place: int) -> tuple[int, ...]:
        """`length` ids from `place` on, round the end."""
        place %= _TEXT
        piece = self.text[place : place + length]
        return piece if len(piece) == length else piece + self.text[: length - len(piece)]


class Shape(msgspec.Struct, frozen=True):
    """A request in outline.

    Attributes:
        gap: Steps to the next arrival.
        chance: 0..255, from which extras are decided.
        place: Where in the text its prompt begins.
    """

    length: int
    answer: int
    gap: int
    chance: int
    place: int

    @classmethod
    def of(cls, dice: Dice) -> Shape:
        """Drawn evenly."""
        return cls(dice.pick(LENGTHS), dice.pick(ANSWERS), dice.pick(GAPS), dice.below(256), dice.below(_TEXT))

    def request(self, space: Space) -> Request:
        """A plain request of this shape."""
        return Request(prompt=space.piece(self.length, self.place), max_new_tokens=self.answer)


def requests(space: Space) -> st.SearchStrategy[Request]:
    """One greedy request: a piece of the text, a budget."""
    return dice(10).map(lambda drawn: Shape.of(drawn).request(space))
