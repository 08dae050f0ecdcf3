"""Attacks: clients of an endpoint that nobody would wish for, many of each kind. Each says what was answered to it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import trio

from stress.benches.wire import CHUNKED_END, Reply, asked, connected, post, read_events, read_reply

AT_ONCE = 64
TRICKLE_S = 0.02
UNREAD_S = 2.0
SMALL_BUFFER_BYTES = 4096
FIELDS = ("prompt", "max_tokens", "n", "stop", "stream", "temperature", "seed", "logit_bias", "logprobs", "salt", "model")
ODD: tuple[Any, ...] = (None, True, -1, 2**80, 1.5, "", "\ud7ff", [], [[]], {}, {"a": {}}, [None], "x" * 300, -(2**63))


class Answer(NamedTuple):
    """What an attacker got: its status, 0 for none, and what is wrong with that; empty where it is as it should be."""

    status: int
    wrong: str = ""


class Field(NamedTuple):
    """What is attacked."""

    port: int
    body_bytes_max: int
    queue_max: int
    drawn: random.Random


Attack = Callable[[Field], Awaitable[Answer]]


def judged(reply: Reply, *statuses: int) -> Answer:
    """An answer with one of these statuses, in the form of an error where it is one."""
    if reply.status not in statuses:
        return Answer(reply.status, f"status {reply.status}")
    if reply.status != 200 and not reply.is_error_body:
        return Answer(reply.status, "an error without a body of JSON")
    return Answer(reply.status)


async def vanish(field: Field) -> Answer:
    """Hangs up in mid-stream, or before it."""
    pieces = field.drawn.choice((0, 0, 1, 2, 5, 20))
    async with connected(field.port) as stream:
        await stream.send_all(asked([field.drawn.randrange(256) for _ in range(20)], 100))
        if pieces:
            await read_events(stream, pieces)
        else:
            await trio.sleep(field.drawn.random() * TRICKLE_S)
    return Answer(0)


async def malformed(field: Field) -> Answer:
    """A body that is no request, or hardly."""
    async with connected(field.port) as stream:
        await stream.send_all(post(_bad_body(field.drawn)))
        reply = await read_reply(stream)
    return judged(reply, 200, 400, 404)


def _bad_body(drawn: random.Random) -> bytes:
    kind = drawn.randrange(4)
    if kind == 0:
        return drawn.randbytes(drawn.randrange(200))
    body: dict[str, Any] = {"prompt": "hello", "max_tokens": 2}
    for _ in range(1 + drawn.randrange(3)):
        body[drawn.choice(FIELDS)] = drawn.choice(ODD)
    data = msgspec.json.encode(body)
    if kind == 1:
        return data[: drawn.randrange(len(data))]
    if kind == 2:
        place = drawn.randrange(len(data))
        return data[:place] + drawn.randbytes(1) + data[place + 1 :]
    return data


async def slow_reader(field: Field) -> Answer:
    """Takes nothing in for a while, then all of it."""
    async with connected(field.port, SMALL_BUFFER_BYTES) as stream:
        await stream.send_all(asked([field.drawn.randrange(256)], 200, n=4))
        await trio.sleep(UNREAD_S)
        reply = await read_reply(stream)
    whole = reply.body.endswith(CHUNKED_END) and b"[DONE]" in reply.body[-100:]
    return Answer(reply.status, "" if reply.status in (429, 200) and (whole or reply.status == 429) else "cut short")


async def slow_sender(field: Field) -> Answer:
    """Sends head and body byte by byte."""
    data = asked([field.drawn.randrange(256)], 3, stream=False)
    async with connected(field.port) as stream:
        for place in range(len(data)):
            await stream.send_all(data[place : place + 1])
            await trio.sleep(TRICKLE_S * field.drawn.random())
        reply = await read_reply(stream)
    return judged(reply, 200, 408)


async def never_sends(field: Field) -> Answer:
    """Promises a body and does not send it."""
    async with connected(field.port) as stream:
        await stream.send_all(post(b"{", length=100))
        reply = await read_reply(stream)
    return judged(reply, 408)


async def oversized(field: Field) -> Answer:
    """A body far longer than may be, of whose answer it hears while it sends."""
    async with connected(field.port) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(_send_while_it_goes, stream, post(b" " * (4 * field.body_bytes_max)))
        reply = await read_reply(stream)
        nursery.cancel_scope.cancel()
    return judged(reply, 413)


async def _send_while_it_goes(stream: trio.SocketStream, data: bytes) -> None:
    """A server that has answered need not hear the rest."""
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(data)


async def crowd(field: Field) -> Answer:
    """One of more than there is room for."""
    async with connected(field.port) as stream:
        await stream.send_all(asked([field.drawn.randrange(256) for _ in range(10)], 20, stream=False))
        reply = await read_reply(stream)
    if reply.status == 429 and b"retry-after:" not in reply.head.lower():
        return Answer(429, "nobody says when to come again")
    return judged(reply, 200, 429)
