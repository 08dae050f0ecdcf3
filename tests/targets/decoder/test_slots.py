from __future__ import annotations

import pytest
import torch

from targets.decoder import DecoderFactory
from targets.models import Model
from tests.targets.decoder.driving import drain, logits, opened, request, submit


def test_slabs_start_dirty_and_finite(tiny: Model) -> None:
    decoder = opened(tiny)
    for slab in (*decoder.store.keys, *decoder.store.values):
        assert slab.shape == (4, 2, 256, 16)  # [S, H, T, D]
        assert slab.isfinite().all()
        assert (slab != 0).all()


def test_what_lies_behind_a_request_changes_no_bit_of_it(tiny: Model) -> None:
    answers = []
    for dirt in (None, 0.0, 1e3):
        decoder = opened(tiny, slots=2)
        for slab in (*decoder.store.keys, *decoder.store.values):
            if dirt is not None:
                slab.fill_(dirt)
        events = submit(decoder, request(1, 2, 3), request(4, new=6), request(5, 6, 7, 8)) + drain(decoder)
        answers.append([logits(events, who) for who in range(3)])
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


def test_a_request_writes_only_the_cells_of_its_own_slot(tiny: Model) -> None:
    decoder = opened(tiny, slots=3)
    before = [slab.clone() for slab in (*decoder.store.keys, *decoder.store.values)]
    submit(decoder, request(1, 2, 3, new=3))
    drain(decoder)
    for slab, clean in zip((*decoder.store.keys, *decoder.store.values), before, strict=True):
        touched = (slab != clean).any(dim=-1).any(dim=1).nonzero().tolist()  # [slot, position]
        assert touched == [[0, position] for position in range(5)]


def test_a_length_is_what_was_run_and_is_gone_with_its_owner(tiny: Model) -> None:
    decoder = opened(tiny, slots=2)
    submit(decoder, request(1, 2, 3, new=3), request(4, new=2))
    lengths = []
    while decoder.live:
        decoder.step()
        lengths.append(list(decoder.store.lengths))
    assert lengths == [[3, 1], [4, 0], [0, 0]]


def test_a_freed_slot_keeps_its_cells_and_none_of_them_is_read_by_the_next_request(tiny: Model) -> None:
    alone = opened(tiny, slots=1)
    expected = logits(submit(alone, request(9, new=3)) + drain(alone), 0)
    decoder = opened(tiny, slots=1)
    submit(decoder, request(*range(40), new=2))
    drain(decoder)
    left = decoder.store.keys[0][0, :, :40].clone()
    events = submit(decoder, request(9, new=3), start=1) + drain(decoder)
    assert torch.equal(logits(events, 1), expected)
    assert torch.equal(decoder.store.keys[0][0, :, 3:40], left[:, 3:])


@pytest.mark.parametrize("reuse", ["length", "zero-on-free", "zero-on-allocate"])
def test_what_becomes_of_cells_that_change_hands_changes_no_bit(slotted: DecoderFactory, reuse: str) -> None:
    decoder, fresh = slotted.open({"slots": 1, "reuse": reuse}), slotted.open({"slots": 1})
    submit(decoder, request(*range(40), new=2))
    drain(decoder)
    events = submit(decoder, request(9, new=3), start=1) + drain(decoder)
    assert torch.equal(logits(events, 1), logits(submit(fresh, request(9, new=3)) + drain(fresh), 0))


@pytest.mark.parametrize(
    ("reuse", "freed", "taken"),
    [("length", False, False), ("zero-on-free", True, True), ("zero-on-allocate", False, True)],
)
def test_cells_are_set_to_zero_when_their_owner_leaves_or_when_the_next_one_comes(
    slotted: DecoderFactory, reuse: str, freed: bool, taken: bool
) -> None:
    decoder = slotted.open({"slots": 1, "reuse": reuse})
    submit(decoder, request(*range(40), new=2))
    drain(decoder)
    behind = [slab[0, :, 3:] for slab in (*decoder.store.keys, *decoder.store.values)]
    assert all(bool((cells == 0).all()) == freed for cells in behind)
    submit(decoder, request(9, new=3), start=1)
    decoder.step()
    assert all(bool((cells == 0).all()) == taken for cells in behind)
