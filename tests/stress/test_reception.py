"""Reception, around an application of one line: what a client that hangs up at the very end may do to it."""

from __future__ import annotations

import pytest
import trio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stress.endpoint.reception import Reception

SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(b"all")(scope, receive, send)


def served(busy_at: str) -> list[str]:
    """The messages that went out, where the connection is being closed when this one comes."""
    out: list[str] = []

    async def receive() -> Message:
        await trio.sleep_forever()
        raise AssertionError("it never wakes")

    async def send(message: Message) -> None:
        if message["type"] == busy_at:
            raise trio.BusyResourceError("another task is closing it")
        out.append(message["type"])

    trio.run(Reception(answer, 10, 1.0), SCOPE, receive, send)
    return out


def test_a_client_that_hangs_up_with_its_whole_reply_in_hand_is_no_error() -> None:
    assert served("nothing") == ["http.response.start", "http.response.body"]
    assert served("http.response.body") == ["http.response.start"]


def test_a_reply_that_cannot_begin_is_an_error() -> None:
    with pytest.RaisesGroup(trio.BusyResourceError):
        served("http.response.start")
