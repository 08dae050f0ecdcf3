from __future__ import annotations

import pytest
import torch

from targets.decoder import Batch
from targets.models import Model
from targets.protocol import Reason
from tests.targets.decoder.driving import drain, logits, opened, request, submit, tokens


def filled(*rows: tuple[int, int, int]) -> Batch:
    """A batch of (submission, slot, last token)."""
    batch = Batch(4)
    for row, (submission, slot, token) in enumerate(rows):
        batch.join(submission, slot)
        batch.keep(row, token)
    return batch


def rows(batch: Batch) -> list[tuple[int, int, int]]:
    return list(zip(batch.submissions, batch.slots(), batch.tokens(), strict=True))


@pytest.mark.parametrize(
    ("leaver", "left"),
    [
        (5, [(7, 0, 30), (6, 3, 20)]),
        (6, [(5, 2, 10), (7, 0, 30)]),
        (7, [(5, 2, 10), (6, 3, 20)]),
    ],
)
def test_when_a_row_leaves_the_last_one_moves_into_its_place_with_all_its_state(
    leaver: int, left: list[tuple[int, int, int]]
) -> None:
    batch = filled((5, 2, 10), (6, 3, 20), (7, 0, 30))
    batch.leave(leaver)
    assert rows(batch) == left


def test_a_row_that_joins_after_one_has_left_stands_behind_the_last() -> None:
    batch = filled((5, 2, 10), (6, 3, 20))
    batch.leave(5)
    batch.join(8, 1)
    batch.keep(1, 40)
    assert rows(batch) == [(6, 3, 20), (8, 1, 40)]


def test_the_last_one_out_leaves_an_empty_batch() -> None:
    batch = filled((5, 2, 10))
    batch.leave(5)
    assert rows(batch) == []


@pytest.mark.parametrize("leavers", [(0,), (1,), (2,), (0, 1), (1, 0), (2, 0), (0, 2, 1)])
def test_those_who_stay_go_on_as_alone_whoever_leaves(tiny: Model, leavers: tuple[int, ...]) -> None:
    asked = [request(*range(10 * who, 11 * who + 3), new=8) for who in range(4)]
    decoder = opened(tiny)
    events = submit(decoder, *asked) + decoder.step()
    for leaver in leavers:
        events += decoder.cancel(leaver, Reason.CANCELLED) + decoder.step()
    events += drain(decoder)
    for who in set(range(4)) - set(leavers):
        alone = opened(tiny)
        expected = submit(alone, asked[who]) + drain(alone)
        assert tokens(events)[who] == tokens(expected)[0]
        assert torch.allclose(logits(events, who), logits(expected, 0), rtol=0, atol=1e-12)
