from __future__ import annotations

from typing import Any

import msgspec
import pytest

from targets.protocol import BadInput, Cancel, Request, Schedule, Step, Submit, Wait, format_schedule, submissions
from targets.protocol import with_request as with_one_request
from targets.protocol.schedule import OPS_MAX, STEPS_MAX, check_references

EVERYTHING = Request(prompt=(3, 1, 2), max_new_tokens=5, stop=(7, 8), deadline_s=9, client_id=0, forced=(4,))
STORY = Schedule(
    ops=(
        Submit(EVERYTHING),
        Step(),
        Submit(Request(prompt=tuple(range(14)), max_new_tokens=1)),
        Step(3, rows=(1, 0)),
        Wait(0, 2),
        Cancel(1),
    ),
    settings={"slots": 2, "slot_order": "fifo"},
)


def decoded(text: str | bytes) -> Schedule:
    return msgspec.json.decode(text, type=Schedule)


def with_field(name: str, value: Any, *, inside: str = "request") -> bytes:
    """STORY's JSON with one field of the schedule, its first op, or its first request set to `value`."""
    data = msgspec.json.decode(msgspec.json.encode(STORY))
    {"schedule": data, "op": data["ops"][0], "step": data["ops"][3], "request": data["ops"][0]["request"]}[inside][name] = (
        value
    )
    return msgspec.json.encode(data)


def test_a_schedule_comes_back_from_json_as_it_was() -> None:
    assert decoded(msgspec.json.encode(STORY)) == STORY


def test_json_leaves_out_what_is_at_its_default() -> None:
    small = Schedule(ops=(Submit(Request(prompt=(1,), max_new_tokens=1)), Step()))
    assert msgspec.json.encode(small) == (
        b'{"ops":[{"type":"submit","request":{"prompt":[1],"max_new_tokens":1}},{"type":"step"}],"settings":{},"version":1}'
    )


@pytest.mark.parametrize("inside", ["schedule", "op", "step", "request"])
def test_an_unknown_field_is_refused(inside: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `surprise`"):
        decoded(with_field("surprise", 1, inside=inside))


@pytest.mark.parametrize("version", [0, 2, -1, 10**30, "1", None, 1.5])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(with_field("version", version, inside="schedule"))


@pytest.mark.parametrize(
    ("inside", "field", "value"),
    [
        ("request", "prompt", [-1]),
        ("request", "prompt", [2**31]),
        ("request", "prompt", [1.5]),
        ("request", "prompt", ["1"]),
        ("request", "prompt", 1),
        ("request", "stop", [-1]),
        ("request", "forced", [10**30]),
        ("request", "max_new_tokens", -1),
        ("request", "max_new_tokens", 1_000_001),
        ("request", "max_new_tokens", True),
        ("request", "max_new_tokens", None),
        ("request", "deadline_s", -1),
        ("request", "client_id", 10**30),
        ("step", "count", -1),
        ("step", "count", 10**30),
        ("step", "rows", [-1]),
        ("step", "rows", [100_001]),
        ("op", "type", "preempt"),
        ("schedule", "settings", {"slots": None}),
        ("schedule", "settings", {"slots": [1]}),
        ("schedule", "ops", None),
    ],
)
def test_a_negative_a_huge_or_a_wrongly_typed_value_is_refused(inside: str, field: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(with_field(field, value, inside=inside))


@pytest.mark.parametrize("text", ["", "[]", "1", "null", "{", '{"settings":{}}', '{"ops":[1]}', '{"ops":[{}]}', "\x00"])
def test_what_is_not_a_schedule_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(text)


def test_a_truth_value_and_a_number_stay_apart_in_settings() -> None:
    settings = decoded('{"ops":[],"settings":{"a":true,"b":1,"c":1.0,"d":"1"}}').settings
    assert [type(value) for value in settings.values()] == [bool, int, float, str]


def test_equal_schedules_have_equal_keys_whatever_the_order_of_their_settings() -> None:
    turned = msgspec.structs.replace(STORY, settings=dict(reversed(STORY.settings.items())))
    assert list(turned.settings) != list(STORY.settings)
    assert turned == STORY
    assert turned.key() == STORY.key()


def test_every_change_gives_another_key() -> None:
    replace = msgspec.structs.replace
    changed = [
        replace(STORY, settings={}),
        replace(STORY, settings={**STORY.settings, "slots": True}),
        replace(STORY, ops=STORY.ops[:-1]),
        replace(STORY, ops=(*STORY.ops[:-1], Cancel(0))),
        *(
            with_one_request(STORY, 0, replace(EVERYTHING, **{field: value}))
            for field, value in {
                "prompt": (3, 1),
                "max_new_tokens": 4,
                "stop": (7,),
                "deadline_s": None,
                "client_id": None,
                "forced": (),
            }.items()
        ),
    ]
    assert len({STORY.key(), *(schedule.key() for schedule in changed)}) == len(changed) + 1


def test_a_submission_is_the_index_of_its_submit_among_the_submits() -> None:
    assert [request.max_new_tokens for request in submissions(STORY)] == [5, 1]
    changed = with_one_request(STORY, 1, EVERYTHING)
    assert submissions(changed) == (EVERYTHING, EVERYTHING)
    assert changed.ops[1:2] + changed.ops[3:] == STORY.ops[1:2] + STORY.ops[3:]


def test_a_schedule_whose_ops_name_only_what_was_handed_in_is_accepted() -> None:
    check_references(STORY)


@pytest.mark.parametrize("op", [Cancel(1), Wait(1, 1), Step(1, rows=(0, 1))])
def test_an_op_that_names_a_later_submission_is_refused(op: Cancel | Wait | Step) -> None:
    schedule = Schedule(ops=(Submit(EVERYTHING), op, Submit(EVERYTHING)))
    with pytest.raises(BadInput) as caught:
        check_references(schedule, "story.json")
    assert str(caught.value) == "submission must be one of the 1 submissions before it, got 1 (op 1, story.json)"
    assert (caught.value.name, caught.value.got) == ("submission", 1)


def test_a_schedule_with_too_many_ops_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        check_references(Schedule(ops=(Step(),) * (OPS_MAX + 1)), "story.json")
    assert str(caught.value) == "ops must be at most 100000, got 100001 (story.json)"


def test_a_schedule_with_too_many_steps_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        check_references(Schedule(ops=(Step(STEPS_MAX), Cancel(0), Step())), "story.json")
    assert str(caught.value) == "steps must be at most 100000 in all, got 100001 (story.json)"


def test_to_wait_for_more_tokens_than_were_asked_for_reads_as_waiting_for_the_end() -> None:
    schedule = Schedule(ops=(Submit(Request(prompt=(1,), max_new_tokens=2)), Wait(0, 2), Wait(0, 3)))
    assert format_schedule(schedule).splitlines()[1:] == ["  1  wait #0 for 2 tokens", "  2  wait for the end of #0"]


def test_a_schedule_reads_as_one_line_an_op() -> None:
    assert format_schedule(STORY).splitlines() == [
        "settings  slot_order=fifo slots=2",
        "  0  submit #0  prompt [3 1 2]  new 5  stop [7 8]  deadline 9 s  id 0  1 tokens forced",
        "  1  step 1",
        "  2  submit #1  prompt [0 1 2 3 4 5 6 7 8 9 10 11 … (14 tokens)]  new 1",
        "  3  step 3  only #1 #0",
        "  4  wait #0 for 2 tokens",
        "  5  cancel #1",
    ]
