"""The wire: a client that knows just enough of HTTP to send what it likes, as slowly as it likes, and to hang up."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import trio

COMPLETIONS = "/v1/completions"
EVENT = b"data: {"
DONE = b"data: [DONE]"
CHUNKED_END = b"0\r\n\r\n"
BLOCK_BYTES = 65_536


class Reply(NamedTuple):
    """A whole reply; a stream's body still has its chunks' sizes in it."""

    status: int
    head: bytes
    body: bytes

    @property
    def events(self) -> int:
        """As many events of a stream have come."""
        return self.body.count(EVENT)

    @property
    def json(self) -> Any:
        """The body, or None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None

    @property
    def is_error_body(self) -> bool:
        """Whether it has the form of an error of OpenAI's API."""
        told = self.json
        return isinstance(told, dict) and isinstance(told.get("error"), dict) and bool(told["error"].get("message"))


def post(body: bytes, path: str = COMPLETIONS, length: int | None = None) -> bytes:
    """A request; `length` is what it says of its body."""
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def asked(prompt: list[int], tokens: int, stream: bool = True, **more: Any) -> bytes:
    """A request for a greedy answer of so many tokens."""
    body = {"prompt": prompt, "max_tokens": tokens, "stream": stream, "ignore_eos": True, "return_token_ids": True}
    return post(msgspec.json.encode(body | more))


@asynccontextmanager
async def connected(port: int, receive_bytes: int | None = None) -> AsyncIterator[trio.SocketStream]:
    """A connection that is closed at once when it is left; with `receive_bytes` it takes in little."""
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await sock.connect(("127.0.0.1", port))
        yield trio.SocketStream(sock)
    finally:
        sock.close()


async def read_events(stream: trio.SocketStream, count: int) -> int:
    """Reads until so many events have come, or the end; returns how many there were."""
    seen, left = 0, b""
    while seen < count:
        data = await stream.receive_some(BLOCK_BYTES)
        if not data:
            break
        seen += (left + data).count(EVENT)
        left = data[-len(EVENT) + 1 :]
    return seen


async def read_reply(stream: trio.SocketStream) -> Reply:
    """Reads one reply to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(BLOCK_BYTES)
        if not more:
            return Reply(0, data, b"")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    lowered = head.lower()
    chunked = b"transfer-encoding: chunked" in lowered
    size = 0
    if not chunked and b"content-length:" in lowered:
        size = int(lowered.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    parts = bytearray(body)
    while not parts.endswith(CHUNKED_END) if chunked else len(parts) < size:
        more = await stream.receive_some(BLOCK_BYTES)
        if not more:
            break
        parts += more
    return Reply(status, head, bytes(parts))
