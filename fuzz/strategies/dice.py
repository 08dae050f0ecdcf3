"""Dice: numbers read off a fixed run of bytes, which is all that Hypothesis draws.

One draw a schedule instead of twenty to forty, at a third of the cost; and bytes of one fixed length are the one kind of
draw into which Hypothesis does not mix constants found in whatever modules happen to be loaded, which made the same seed
give other schedules in another process. All bytes zero is the simplest example, and what a shrink tends to.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

SIZE = 192
"""Bytes for the longest story; what is read past them is zero."""
_MORE = 4096


class Dice:
    """Reads numbers off bytes, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        """A number in 0..limit-1, as evenly as two bytes allow; `limit` at most 65,536."""
        data = self._data[self._at : self._at + 2]
        self._at += 2
        return int.from_bytes(data) % limit

    def pick(self, choices: Sequence[T]) -> T:
        """One of several, the first being the simplest."""
        return choices[self.below(len(choices))]

    def more(self) -> Dice:
        """Other dice, all of whose bytes follow from two of these: for what takes many draws. Zero gives zeros."""
        seed = self.below(65_536)
        return Dice(random.Random(seed).randbytes(_MORE) if seed else b"")


def dice(size: int = SIZE) -> st.SearchStrategy[Dice]:
    """Fresh dice."""
    return st.binary(min_size=size, max_size=size).map(Dice)
