"""Shadow tags: beside each cell of a cache, who last wrote it, for which position, and how.

A tag is one int64, so that a target writes and reads tags with the very indices that write and read K and V, and a judge
compares thousands in one operation. Zero is a cell that nobody has written; every real tag is greater.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import torch

_HOW_BITS, _POSITION_BITS, _GENERATION_BITS = 3, 24, 17
POSITION_SHIFT = _HOW_BITS
"""Where a tag's position begins."""
POSITION_MASK = (1 << _POSITION_BITS) - 1
OWNER_SHIFT = _HOW_BITS + _POSITION_BITS
"""A tag shifted right by so much is its owner: submission and generation."""
SUBMISSION_SHIFT = OWNER_SHIFT + _GENERATION_BITS
NEVER = 0
"""The tag of a cell that nobody has written."""


class How(enum.IntEnum):
    """The operation that last wrote a cell."""

    COMPUTED = 1
    COPIED = 2
    SWAPPED_IN = 3
    HIT = 4

    @property
    def words(self) -> str:
        """For people."""
        return {1: "computed", 2: "copied on write", 3: "swapped in", 4: "hit in a cache"}[self.value]


class Tag(NamedTuple):
    """What a tag says.

    Attributes:
        submission: The request that the cell was written for.
        generation: How many owners its storage had had by then, the writer included.
        position: Where the token stands in that request.
        how: The operation that wrote it.
    """

    submission: int
    generation: int
    position: int
    how: How


def pack(submission: int, generation: int, position: int = 0, how: How = How.COMPUTED) -> int:
    """A tag as one integer. Adding `position << POSITION_SHIFT` to one at position 0 gives that of another position."""
    owner = (submission << _GENERATION_BITS) | generation % (1 << _GENERATION_BITS)
    return (owner << OWNER_SHIFT) | (position << POSITION_SHIFT) | how


def retagged(tags: torch.Tensor, owner: int, how: How) -> torch.Tensor:
    """Tags, int64 of any shape, at the positions that they have: written for `owner` (a tag at position 0) as `how` says."""
    positions = tags & (POSITION_MASK << POSITION_SHIFT)
    return positions + (owner >> OWNER_SHIFT << OWNER_SHIFT) + how


def rewritten(tags: torch.Tensor, how: How) -> torch.Tensor:
    """Tags, int64 of any shape, of the same owners and positions, last written as `how` says; what nobody wrote stays so."""
    return torch.where(tags == NEVER, tags, (tags >> POSITION_SHIFT << POSITION_SHIFT) + how)


def unpack(tag: int) -> Tag | None:
    """What a tag says; None for a cell that nobody has written, or an integer that is no tag."""
    how = tag & ((1 << _HOW_BITS) - 1)
    if tag <= NEVER or how not in list(How):
        return None
    owner = tag >> OWNER_SHIFT
    return Tag(
        submission=owner >> _GENERATION_BITS,
        generation=owner & ((1 << _GENERATION_BITS) - 1),
        position=(tag >> POSITION_SHIFT) & ((1 << _POSITION_BITS) - 1),
        how=How(how),
    )
