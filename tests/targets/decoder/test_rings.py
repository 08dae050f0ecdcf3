"""Rings: a windowed layer that keeps only what it may see gives what one with all cells and a mask gives."""

from __future__ import annotations

import pytest
import torch

from targets.decoder import DecoderFactory, Feed, Runner, SlotStore
from targets.models import find_model
from targets.protocol import Request
from tests.targets.decoder.driving import alone, close, drain, logits, request, submit

WINDOW = 16
NAMES = ["tiny-mistral", "tiny-gemma3"]
"""One whose layers are all windowed, and one that mixes them with others."""


@pytest.fixture(scope="module", params=NAMES)
def windowed(request: pytest.FixtureRequest) -> DecoderFactory:
    return DecoderFactory(find_model(request.param))


def prompt(length: int, first: int = 3) -> tuple[int, ...]:
    return tuple((first + 7 * place) % 256 for place in range(length))


@pytest.mark.slow
@pytest.mark.parametrize("append", [1, 4, 16])
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_a_ring_gives_what_all_cells_and_a_mask_give(windowed: DecoderFactory, length: int, append: int) -> None:
    asked = [request(*prompt(length), new=WINDOW + 2), request(*prompt(5, 90), new=9), request(*prompt(21, 60), new=4)]
    ring, whole = windowed.open({"window": "ring", "ring_append_max": append}), windowed.open({})
    assert isinstance(ring.store, SlotStore)
    assert min(ring.store.rooms) == WINDOW + append - 1
    given = submit(ring, *asked) + drain(ring, 200)
    expected = submit(whole, *asked) + drain(whole)
    for who, each in enumerate(asked):
        assert close(logits(given, who), logits(expected, who))
        assert close(logits(given, who), alone(windowed, each))
    assert ring.audit().counts["ring_wrapped"] > 0
    assert ring.audit().counts["chunked"] > 0


@pytest.mark.parametrize("count", range(1, 9))
def test_any_number_of_tokens_up_to_the_most_may_come_at_once(windowed: DecoderFactory, count: int) -> None:
    asked = request(*prompt(41), new=3)
    decoder = windowed.open({"window": "ring", "ring_append_max": 8, "step_tokens_max": count})
    events = submit(decoder, asked) + drain(decoder, 200)
    assert close(logits(events, 0), alone(windowed, asked))


def test_a_ring_that_is_a_cell_too_small_shows(windowed: DecoderFactory) -> None:
    """The control: a query of the last of several tokens then overwrites what the first of them may see."""
    asked = request(*prompt(3 * WINDOW), new=3)
    decoder = windowed.open({"window": "ring", "ring_append_max": 4})
    decoder.planner.row_tokens_max = 5
    events = submit(decoder, asked) + drain(decoder)
    assert not close(logits(events, 0), alone(windowed, asked))


def test_a_ring_that_is_used_again_shows_nothing_of_its_last_owner(windowed: DecoderFactory) -> None:
    first: Request = request(*prompt(40), new=9)
    for length in (1, WINDOW - 1, WINDOW + 6):
        second = request(*prompt(length, 70), new=5)
        decoder, fresh = (windowed.open({"window": "ring", "slots": 1}) for _ in range(2))
        submit(decoder, first)
        drain(decoder)
        events = submit(decoder, second, start=1) + drain(decoder)
        assert torch.equal(logits(events, 1), logits(submit(fresh, second) + drain(fresh), 0))


def test_what_a_row_may_see_in_a_ring_is_the_window_and_no_cell_that_it_never_reached(windowed: DecoderFactory) -> None:
    runner: Runner = windowed.open({"window": "ring", "ring_append_max": 4, "slots": 2}).runner
    rows = runner.place([Feed(0, [1, 2], 0), Feed(1, [3], 1)], [30, 2])
    seen = runner.visible(rows, WINDOW)[:, 0]  # [B, Q, T]
    assert seen.shape == (2, 2, WINDOW + 3)
    assert seen.sum(-1).tolist() == [[WINDOW, WINDOW], [3, 3]]
    assert seen[1, 0].nonzero()[:, 0].tolist() == [0, 1, 2]
    own = {position % (WINDOW + 3) for position in range(31 - WINDOW, 31)}
    assert set(seen[0, 0].nonzero()[:, 0].tolist()) == own
