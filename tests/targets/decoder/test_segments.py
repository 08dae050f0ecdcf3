"""Packed segments: one row, borders, positions that restart, and answers as alone."""

from __future__ import annotations

import pytest

from targets.decoder import PackedRows, SegmentRunner
from targets.decoder.factory import DecoderFactory
from targets.models import Model, find_model
from targets.protocol import Attended, How, Setting, Tag
from targets.protocol.tags import unpack
from tests.targets.decoder.driving import alone, assert_all_given_back, close, drain, logits, request, submit


def test_a_prompt_and_a_decode_stand_behind_each_other_and_positions_and_cells_restart(tiny: Model) -> None:
    decoder = DecoderFactory(tiny, name="packed").open({})
    submit(decoder, request(7, 8, new=4))
    decoder.step()
    submit(decoder, request(1, 2, 3), start=1)
    decoder.admit(None)
    decoder.plan_step(None)
    assert isinstance(decoder.runner, SegmentRunner)
    rows = decoder.runner.place(decoder.feeds([0, 1]), [2, 0])
    assert isinstance(rows, PackedRows)
    assert rows.ids.shape == (1, 4)
    assert rows.ids[0, 1:].tolist() == [1, 2, 3]
    assert rows.positions.tolist() == [[2, 0, 1, 2]]
    assert rows.segments.tolist() == [0, 1, 1, 1]
    assert rows.owners.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.held.tolist() == [0, 1, 2, 0, 1, 2]
    assert decoder.runner.visible(rows, None)[0, 0].int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    assert decoder.runner.visible(rows, 2)[0, 0].int().tolist()[0] == [0, 1, 1, 0, 0, 0]


def test_a_segment_sees_its_own_cells_each_once(tiny: Model) -> None:
    decoder = DecoderFactory(tiny, name="packed").open({"sanitize": True, "slots": 2})
    submit(decoder, request(1, 2, 3, new=3), request(4, new=2), request(5, 6, new=2))
    lengths = {0: 3, 1: 1, 2: 2}
    for report in (event for event in drain(decoder) if isinstance(event, Attended)):
        for row, (who, generation) in enumerate(zip(report.submissions, report.generations, strict=True)):
            tags = report.tags[0, row][report.visible[0, row]].tolist()
            own = [Tag(who, generation, place, How.COMPUTED) for place in range(lengths[who])]
            assert [unpack(tag) for tag in tags] == own
            lengths[who] += 1
    assert lengths == {0: 6, 1: 3, 2: 4}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"step_tokens_max": 4}, {"pipelined": True}, {"prefill": "apart", "slots": 2}])
@pytest.mark.parametrize("name", ["tiny", "tiny-gpt2", "tiny-gemma3", "tiny-llama4"])
def test_each_is_answered_as_alone_whatever_it_is_packed_with(name: str, settings: dict[str, Setting]) -> None:
    asked = [request(*range(1, length + 1), new=new) for length, new in ((1, 6), (7, 2), (3, 9), (12, 4))]
    factory = DecoderFactory(find_model(name), name="packed")
    decoder = factory.open(settings)
    events = submit(decoder, *asked) + drain(decoder)
    assert_all_given_back(decoder)
    assert decoder.runner.counts["segments_packed"] > 4
    for who, each in enumerate(asked):
        assert close(logits(events, who), alone(factory, each)), f"#{who}"


def test_rows_that_are_packed_and_those_that_mix_prompts_with_decodes_are_counted(tiny: Model) -> None:
    decoder = DecoderFactory(tiny, name="packed").open({})
    submit(decoder, request(1, 2, new=2))
    decoder.step()
    counts = decoder.audit().counts
    assert (counts["segments_packed"], counts["segments_mixed"]) == (0, 0)
    submit(decoder, request(3, 4, 5, new=1), start=1)
    decoder.step()
    counts = decoder.audit().counts
    assert (counts["segments_packed"], counts["segments_mixed"]) == (2, 1)
