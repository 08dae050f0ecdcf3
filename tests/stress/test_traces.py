"""Traces: recorded load is asked as it was recorded, or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stress.load.traces import read_trace, share
from targets.protocol import BadInput
from tests.stress.locusts import planned


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_arrivals_are_kept_from_the_first_one_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace",
        {"arrival_s": 107.0, "prompt_tokens": 5, "new_tokens": 3, "who": "me"},
        {"arrival_s": 100.0, "prompt": [4, 5], "new_tokens": 2},
        {"arrival_s": 103.0, "prompt": "hello", "new_tokens": 1},
    )
    found = read_trace(path, planned(trace=str(path), trace_speed="2"))
    assert [(ask.at_s, len(ask.request.prompt), ask.text, ask.request.max_new_tokens) for ask in found] == [
        (0.0, 2, None, 2),
        (1.5, 0, "hello", 1),
        (3.5, 5, None, 3),
    ]
    assert read_trace(path, planned(trace=str(path), trace_speed="2")) == found


def test_a_trace_without_arrivals_has_none(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", {"prompt_tokens": 5, "new_tokens": 3}, "\n", {"prompt_tokens": 6, "new_tokens": 3})
    assert [ask.at_s for ask in read_trace(path, planned())] == [None, None]


def test_a_conversation_is_asked_turn_by_turn_with_all_that_was_said(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "hello to you"},
        {"from": "human", "value": "why"},
        {"from": "gpt", "value": "so"},
        {"from": "human", "value": "never answered"},
    ]
    path = write(tmp_path / "chats", [{"id": "1", "conversations": turns}])
    found = read_trace(path, planned())
    assert [(ask.text, ask.request.max_new_tokens) for ask in found] == [("hi\n", 3), ("hi\nhello to you\nwhy\n", 1)]


def test_users_share_a_trace_and_leave_nothing_out(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", *({"prompt_tokens": 1, "new_tokens": 1 + index} for index in range(10)))
    found = read_trace(path, planned())
    shares = [list(share(found, user, 3)) for user in range(3)]
    assert [len(each) for each in shares] == [4, 3, 3]
    assert sorted(ask.turn for each in shares for ask in each) == list(range(10))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["nothing\n"], "--trace must be JSON lines of requests, or a list of conversations, got "),
        ([], "--trace must be a file with something to ask, got "),
        ([{"new_tokens": 3}], "--trace must be lines with a prompt or prompt_tokens, got neither (line 1)"),
        (
            [{"prompt_tokens": 0, "new_tokens": 3}],
            "--trace must be JSON lines of requests, or a list of conversations, got ",
        ),
        (
            [{"prompt_tokens": 1, "new_tokens": 1}, {"prompt_tokens": 1, "new_tokens": 1, "arrival_s": 1}],
            "--trace must be a file in which every request has its arrival_s, or none, got ",
        ),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, lines: list[object], message: str) -> None:
    path = write(tmp_path / "trace", *lines)
    with pytest.raises(BadInput) as told:
        read_trace(path, planned())
    assert str(told.value).startswith(message)
