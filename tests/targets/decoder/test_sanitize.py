"""What the decoder tells under `sanitize`, and what it does under `poison`."""

from __future__ import annotations

import pytest
import torch

from targets.decoder import Decoder
from targets.decoder.store import POISONS
from targets.models import Model, find_model
from targets.protocol import Attended, Event, How, Reason, Setting, Tag
from targets.protocol.tags import unpack
from tests.targets.decoder.driving import drain, logits, opened, request, submit

MASKS = ["tiny", "tiny-gemma3", "tiny-mistral", "tiny-gpt2", "tiny-bloom", "tiny-bamba"]
"""One mask for all layers, one for each type of layer, windows, learned positions, columns only, attention in one layer."""


def attended(events: list[Event]) -> list[Attended]:
    return [event for event in events if isinstance(event, Attended)]


def seen(report: Attended, group: int, row: int) -> list[Tag | None]:
    """The tags that a row could see, by cell."""
    tags = report.tags[group, row][report.visible[group, row]].tolist()
    return [unpack(tag) for tag in tags]


def served(model: Model, **settings: Setting) -> tuple[Decoder, list[Event]]:
    """Three requests of unequal lengths on two slots: one decodes while the third takes the second's slot."""
    decoder = opened(model, slots=2, **settings)
    return decoder, submit(decoder, request(1, 2, 3, new=6), request(4, new=2), request(5, 6, new=3)) + drain(decoder)


@pytest.mark.parametrize("name", MASKS)
def test_every_row_sees_its_own_positions_each_once_within_its_window(name: str) -> None:
    model = find_model(name)
    decoder = opened(model, slots=2, sanitize=True)
    asked = {0: tuple(range(30)), 1: (40,), 2: (50, 51)}
    events = submit(decoder, *(request(*prompt, new=5) for prompt in asked.values())) + drain(decoder)
    lengths = {who: len(prompt) for who, prompt in asked.items()}
    for report in attended(events):
        assert report.layers in {(0,), (0, 1), (1,)}
        for row, (who, generation) in enumerate(zip(report.submissions, report.generations, strict=True)):
            for group, layer in enumerate(report.layers):
                window = model.plan.layers[layer].window or 10**6
                own = range(max(0, lengths[who] - window), lengths[who])
                assert seen(report, group, row) == [Tag(who, generation, position, How.COMPUTED) for position in own]
            lengths[who] += 1
    assert lengths == {0: 35, 1: 6, 2: 7}
    assert {len(report.layers) for report in attended(events)} == {2 if name == "tiny-gemma3" else 1}


def test_a_slot_that_changes_hands_has_another_generation_and_keeps_its_tags_behind_the_mask(tiny: Model) -> None:
    decoder = opened(tiny, slots=2, sanitize=True)
    events = submit(decoder, request(*range(9), new=4), request(1, 2, 3, new=1), request(4, new=2)) + drain(decoder)
    report = next(report for report in attended(events) if 2 in report.submissions)
    row = report.submissions.index(2)
    assert report.generations[row] == 2
    assert seen(report, 0, row) == [Tag(2, 2, 0, How.COMPUTED)]
    hidden = report.tags[0, row][~report.visible[0, row]].tolist()
    assert [unpack(tag) for tag in hidden[:3]] == [Tag(1, 1, 1, How.COMPUTED), Tag(1, 1, 2, How.COMPUTED), None]


def test_what_is_written_down_changes_no_bit_and_nothing_is_written_down_unasked(tiny: Model) -> None:
    (quiet, plain), (_, told) = served(tiny), served(tiny, sanitize=True)
    assert attended(plain) == []
    assert len(attended(told)) > 3
    assert quiet.store.tags == []
    for who in range(3):
        assert torch.equal(logits(plain, who), logits(told, who))


def test_the_memory_of_a_slot_is_told_in_bytes_under_sanitize_only(tiny: Model) -> None:
    decoder = opened(tiny, slots=2, sanitize=True, context_tokens_max=16)
    submit(decoder, request(1, new=3), request(2, new=3))
    decoder.step()
    size = 2 * 2 * 16 * 16 * 8  # K and V, H, T, D, bytes of a float64
    first, second = (holding.storage for holding in decoder.audit().held)
    assert first == tuple((slab, 0, size) for slab in range(2))
    assert second == tuple((slab, size, 2 * size) for slab in range(2))
    quiet = opened(tiny)
    submit(quiet, request(1))
    quiet.step()
    assert [holding.storage for holding in quiet.audit().held] == [()]


@pytest.mark.parametrize("poison", POISONS)
def test_a_freed_slot_and_what_nobody_wrote_hold_the_poison_and_no_bit_of_an_answer_changes(
    tiny: Model, poison: str
) -> None:
    _, plain = served(tiny)
    decoder, poisoned = served(tiny, poison=poison)
    for slabs, constant in zip((decoder.store.keys, decoder.store.values), POISONS[poison], strict=True):
        assert all(bool((slab == constant).all()) for slab in slabs)
    for who in range(3):
        assert torch.equal(logits(plain, who), logits(poisoned, who))


def test_a_cancelled_request_s_cells_are_poisoned_and_its_neighbour_s_are_not(tiny: Model) -> None:
    decoder = opened(tiny, slots=2, poison="high")
    submit(decoder, request(1, 2, 3), request(4, 5, 6))
    decoder.step()
    decoder.cancel(0, Reason.CANCELLED)
    gone, kept = decoder.store.keys[0][0], decoder.store.keys[0][1]
    assert bool((gone == 3.0).all())
    assert not bool((kept[:, :3] == 3.0).any())


def test_padding_has_another_id_under_each_poison(tiny: Model) -> None:
    ids = {}
    for poison in ("none", "low", "high"):
        decoder = opened(tiny, poison=poison)
        submit(decoder, request(1, 2, 3), request(4))
        decoder.admit(None)
        decoder.plan_step(None)
        rows = decoder.runner.place(decoder.feeds([0, 1]), [0, 0])
        ids[poison] = rows.ids.tolist()
    assert ids == {
        "none": [[1, 2, 3], [4, 4, 4]],
        "low": [[1, 2, 3], [4, 0, 0]],
        "high": [[1, 2, 3], [4, 319, 319]],
    }
