"""Static batches: who is let in together, where everything stands in the rectangle, and that padding is mute."""

from __future__ import annotations

import itertools

import pytest
import torch

from targets.decoder import PaddedRows, StaticDecoder, StaticRunner
from targets.decoder.factory import DecoderFactory
from targets.models import Model, find_model
from targets.protocol import Attended, BadInput, Event, How, Reason, Setting, Tag
from targets.protocol.tags import NEVER, unpack
from tests.targets.decoder.driving import admitted, alone, assert_all_given_back, close, drain, logits, request, submit

SIDES = pytest.mark.parametrize("side", ["left", "right"])


def static(model: Model, **settings: Setting) -> StaticDecoder:
    decoder = DecoderFactory(model, name="static").open(settings)
    assert isinstance(decoder, StaticDecoder)
    return decoder


def laid_out(decoder: StaticDecoder) -> list[PaddedRows]:
    """The rows of every forward from now on, as they come."""
    assert isinstance(decoder.runner, StaticRunner)
    seen, place = [], decoder.runner.place

    def watched(*arguments: object) -> PaddedRows:
        rows = place(*arguments)  # type: ignore[arg-type]
        assert isinstance(rows, PaddedRows)
        seen.append(rows)
        return rows

    decoder.runner.place = watched  # type: ignore[assignment]
    return seen


# Who is let in


def test_nobody_joins_a_batch_that_runs_and_the_next_one_comes_when_its_last_has_ended(tiny: Model) -> None:
    decoder = static(tiny, slots=2)
    submit(decoder, request(1, new=1), request(2, new=3))
    assert [who for who, _ in admitted(decoder.step())] == [0, 1]
    submit(decoder, request(3, new=1), request(4, new=1), start=2)
    assert [admitted(decoder.step()) for _ in range(2)] == [[], []]
    assert [who for who, _ in admitted(decoder.step())] == [2, 3]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_batch_that_is_not_full_waits_for_more_and_one_that_is_does_not(tiny: Model, steps: int) -> None:
    decoder = static(tiny, slots=2, gather_steps=steps)
    for start in (0, 1):  # as long for the second batch as for the first
        submit(decoder, request(1, new=1), start=start)
        assert [len(admitted(decoder.step())) for _ in range(steps + 1)] == [*[0] * steps, 1]
    submit(decoder, request(1, new=1), request(2, new=1), start=2)
    assert len(admitted(decoder.step())) == 2


def test_requests_of_one_bucket_share_a_batch_and_the_oldest_waits_for_nobody(tiny: Model) -> None:
    decoder = static(tiny, slots=4, bucket_tokens=4, gather_steps=0)
    lengths = (5, 1, 8, 4, 9)
    submit(decoder, *(request(*range(length), new=1) for length in lengths))
    batches = [[who for who, _ in admitted(decoder.step())] for _ in range(3)]
    assert batches == [[0, 2], [1, 3], [4]]
    assert decoder.runner.counts["batches_bucketed"] == 3


def test_who_is_cancelled_while_a_batch_gathers_is_not_in_it(tiny: Model) -> None:
    decoder = static(tiny, slots=2)
    submit(decoder, request(1), request(2), request(3))
    decoder.cancel(0, Reason.CANCELLED)
    assert [who for who, _ in admitted(decoder.step())] == [1, 2]


def test_a_network_whose_prompts_cannot_share_a_forward_is_refused() -> None:
    for target, name in itertools.product(("static", "packed"), ("tiny-bloom", "tiny-bamba")):
        with pytest.raises(BadInput) as caught:
            DecoderFactory(find_model(name), name=target)
        rule = "one whose prompts can share a forward, without ALiBi or recurrent states"
        assert str(caught.value) == f"model must be {rule}, for target {target}, got {name} (--model)"


# Where everything stands


@pytest.mark.parametrize(
    ("side", "held", "positions", "last"),
    [("left", [[-1, -1, 0], [0, 1, 2]], [[0, 0, 0], [0, 1, 2]], [2, 2]), ("right", [[0, -1, -1], [0, 1, 2]], None, [0, 2])],
)
def test_a_prompt_is_filled_up_on_its_side_and_its_positions_count_its_own_tokens(
    tiny: Model, side: str, held: list[list[int]], positions: list[list[int]] | None, last: list[int]
) -> None:
    decoder = static(tiny, slots=2, padding_side=side)
    forwards = laid_out(decoder)
    submit(decoder, request(7, new=3), request(8, 9, 10, new=3))
    for _ in range(2):
        decoder.step()
    prompts, decodes = forwards
    assert prompts.held.clamp(min=-1).tolist() == held
    assert prompts.positions.tolist() == (positions or [[0, 0, 0], [0, 1, 2]])
    assert prompts.ids.tolist() == [[0, 0, 7] if side == "left" else [7, 0, 0], [8, 9, 10]]
    assert prompts.last is not None
    assert prompts.last[1].tolist() == last
    assert decodes.columns.tolist() == [[3], [3]], "all rows write to one column"
    assert decodes.positions.tolist() == [[1], [3]]
    assert decodes.held.clamp(min=-1).tolist() == [[*held[0], 1], [*held[1], 3]]


def test_a_bucket_s_prompts_are_filled_up_to_its_end_and_never_past_the_context(tiny: Model) -> None:
    for context, width in ((16, 8), (7, 7)):
        decoder = static(tiny, slots=2, bucket_tokens=8, context_tokens_max=context)
        submit(decoder, request(1), request(1, 2))
        decoder.step()
        assert decoder.store.width == width


@SIDES
def test_a_row_sees_its_own_cells_and_padding_belongs_to_nobody(tiny: Model, side: str) -> None:
    decoder = static(tiny, slots=2, padding_side=side, sanitize=True)
    lengths = {0: 1, 1: 4}
    submit(decoder, request(7, new=3), request(8, 9, 10, 11, new=3))
    for report in (event for event in drain(decoder) if isinstance(event, Attended)):
        for row, who in enumerate(report.submissions):
            tags = report.tags[0, row][report.visible[0, row]].tolist()
            assert [unpack(tag) for tag in tags] == [Tag(who, 1, place, How.COMPUTED) for place in range(lengths[who])]
            lengths[who] += 1
    assert decoder.store.tags[0][:, :4].eq(NEVER).sum() == 3, "three cells of padding"


# Answers


@pytest.mark.slow
@SIDES
@pytest.mark.parametrize("bucket", [0, 4, 16])
@pytest.mark.parametrize("name", ["tiny", "tiny-gpt2", "tiny-gemma3", "tiny-llama4"])
def test_each_is_answered_as_alone_whatever_stands_beside_it(name: str, bucket: int, side: str) -> None:
    asked = [request(*range(1, length + 1), new=new) for length, new in ((1, 6), (7, 2), (3, 9), (12, 4))]
    factory = DecoderFactory(find_model(name), name="static")
    decoder = factory.open({"padding_side": side, "bucket_tokens": bucket})
    events = submit(decoder, *asked) + drain(decoder)
    assert_all_given_back(decoder)
    for who, each in enumerate(asked):
        assert close(logits(events, who), alone(factory, each)), f"#{who}"


@SIDES
@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_row_that_has_ended_is_carried_along_and_changes_no_bit(tiny: Model, side: str, cancelled: int) -> None:
    asked = [request(1, 2, 3, new=8), request(4, new=8), request(5, 6, new=8)]

    def played(victim: int | None) -> tuple[StaticDecoder, list[Event]]:
        decoder = static(tiny, slots=3, padding_side=side)
        events = submit(decoder, *asked) + decoder.step() + decoder.step()
        events += [] if victim is None else decoder.cancel(victim, Reason.CANCELLED)
        return decoder, events + drain(decoder)

    (whole, undisturbed), (decoder, events) = played(None), played(cancelled)
    assert whole.runner.counts["rows_idle"] == 0
    assert decoder.runner.counts["rows_idle"] == 6
    for who in {0, 1, 2} - {cancelled}:
        assert torch.equal(logits(events, who), logits(undisturbed, who))


def test_an_ended_request_holds_nothing_while_its_row_is_carried_along(tiny: Model) -> None:
    decoder = static(tiny, slots=2)
    submit(decoder, request(1, new=1), request(2, new=4))
    decoder.step()
    audit = decoder.audit()
    assert [holding.owners for holding in audit.held] == [(1,)]
    assert len(audit.free) == 1
    assert sum(decoder.store.lengths) == 1


@SIDES
def test_answers_that_run_into_the_limit_have_room_behind_the_widest_prompt(tiny: Model, side: str) -> None:
    decoder = static(tiny, slots=2, context_tokens_max=16, padding_side=side)
    asked = [request(1, new=30), request(*range(15), new=30)]
    events = submit(decoder, *asked) + drain(decoder)
    factory = DecoderFactory(tiny, name="static")
    assert close(logits(events, 0), alone(factory, request(1, new=15)))
    assert_all_given_back(decoder)


def test_what_happened_is_counted_and_what_cannot_happen_is_not(tiny: Model) -> None:
    decoder = static(tiny, slots=2, padding_side="right")
    submit(decoder, request(1, new=1), request(1, 2, new=2))
    drain(decoder)
    assert decoder.audit().counts == {
        "batches": 1,
        "batches_bucketed": 0,
        "rows_padded_left": 0,
        "rows_padded_right": 1,
        "rows_idle": 1,
    }
