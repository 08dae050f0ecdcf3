from __future__ import annotations

import pytest

from targets.protocol import How, Tag
from targets.protocol.schedule import OPS_MAX
from targets.protocol.tags import NEVER, OWNER_SHIFT, POSITION_SHIFT, pack, unpack

TAGS = [
    Tag(0, 0, 0, How.COMPUTED),
    Tag(3, 2, 17, How.HIT),
    Tag(OPS_MAX, 2**17 - 1, 2**24 - 1, How.SWAPPED_IN),
]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_says_what_was_packed_and_fits_an_int64(tag: Tag) -> None:
    packed = pack(*tag)
    assert unpack(packed) == tag
    assert NEVER < packed < 2**63


def test_a_cell_that_nobody_wrote_and_what_is_no_tag_have_nothing_to_say() -> None:
    assert [unpack(tag) for tag in (NEVER, -1, -(2**63), 5, 6, 7)] == [None] * 6


def test_a_position_is_added_without_touching_the_owner() -> None:
    moved = pack(3, 2) + (1000 << POSITION_SHIFT)
    assert unpack(moved) == Tag(3, 2, 1000, How.COMPUTED)
    assert moved >> OWNER_SHIFT == pack(3, 2) >> OWNER_SHIFT
    assert len({pack(who, generation) >> OWNER_SHIFT for who in range(3) for generation in range(3)}) == 9


def test_every_way_to_write_has_words() -> None:
    assert [how.words for how in How] == ["computed", "copied on write", "swapped in", "hit in a cache"]
