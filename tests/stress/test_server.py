"""The server over real sockets on 127.0.0.1, and the official client of OpenAI's API against it, unchanged."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
import trio
from trio.abc import Clock
from trio.testing import MockClock

from fuzz.conductor import replay
from stress.endpoint.app import Bounds, Service
from stress.endpoint.driver import Driver
from stress.endpoint.server import HEAD_S, Left, listen, serve, url_of
from stress.endpoint.tokens import ByteTokenizer
from targets.decoder import DecoderFactory
from targets.protocol import Event, Factory, Finished, Request, Schedule, Submit
from tests.fuzz.scripted import Honest, Scripted
from tests.stress.visiting import END

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Listening:
    """A server on a free port."""

    def __init__(self, driver: Driver, url: str) -> None:
        self.driver = driver
        self.url = url
        self.stop = trio.Event()
        self.over = trio.Event()
        self.left = Left(-1, "it has not ended")

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", int(self.url.rpartition(":")[2]))

    async def held(self) -> int:
        audit = await self.driver.audit()
        assert audit is not None
        return len(audit.held)


@asynccontextmanager
async def listening(
    factory: Factory, *, grace_s: float = 5, bounds: Bounds | None = None, api_key: str | None = None
) -> AsyncIterator[Listening]:
    """Serves while it is entered."""
    driver = Driver(factory, {}, queue_max=64)
    tokenizer = ByteTokenizer(factory.vocabulary, factory.special_ids, (END,))
    app = Service(driver, tokenizer, "tiny", bounds or Bounds()).application(api_key)
    bound = listen("127.0.0.1", 0)
    server = Listening(driver, url_of(bound))

    async def run() -> None:
        server.left = await serve(driver, app, bound, server.stop.wait, grace_s)
        server.over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield server
        server.stop.set()
    assert server.left.held == ""


def with_server(
    factory: Factory, main: Callable[[Listening], Awaitable[None]], clock: Clock | None = None, **options: object
) -> None:
    async def both() -> None:
        with trio.fail_after(30):
            async with listening(factory, **options) as server:  # type: ignore[arg-type]
                await main(server)

    trio.run(both, clock=clock)


def post(body: bytes, more: str = "") -> bytes:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def read_until(stream: trio.SocketStream, what: bytes) -> bytes:
    data = b""
    while what not in data:
        piece = await stream.receive_some()
        assert piece, data
        data += piece
    return data


LONG = post(b'{"prompt": "hello", "max_tokens": 200, "stream": true}')


def test_the_official_client_works_unchanged(slots: DecoderFactory) -> None:
    trace = replay(slots, Schedule(ops=(Submit(Request(prompt=tuple(b"hello"), max_new_tokens=12, stop=(END,))),)))
    (ended,) = (event for event in trace if isinstance(event, Finished))
    tokenizer = ByteTokenizer(slots.vocabulary, slots.special_ids, (END,))
    text = b"".join(map(tokenizer.spelling, ended.tokens)).decode(errors="replace")

    def talk(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret-secret", max_retries=0, timeout=20) as client:
            assert [model.id for model in client.models.list()] == ["tiny"]
            whole = client.completions.create(model="tiny", prompt="hello", max_tokens=12, logprobs=3)
            assert whole.choices[0].text == text
            assert whole.usage is not None
            assert whole.usage.total_tokens == 17
            assert whole.choices[0].logprobs is not None
            assert len(whole.choices[0].logprobs.tokens or ()) == 12
            pieces = client.completions.create(model="tiny", prompt="hello", max_tokens=12, stream=True)
            assert "".join(piece.choices[0].text for piece in pieces) == text
            by_ids = client.completions.create(model="tiny", prompt=[*b"hello"], max_tokens=12, stop=[text[6]])
            assert (by_ids.choices[0].text, by_ids.choices[0].finish_reason) == (text[: text.index(text[6])], "stop")

            messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
            chat = client.chat.completions.create(
                model="tiny", messages=messages, max_completion_tokens=9, logprobs=True, top_logprobs=2, n=2
            )
            said = chat.choices[0].message.content
            assert chat.choices[1].message.content == said
            assert chat.choices[0].logprobs is not None
            content = chat.choices[0].logprobs.content or []
            assert [len(token.top_logprobs) for token in content] == [2] * 9
            assert bytes(byte for token in content for byte in token.bytes or ()).decode(errors="replace") == said
            stream = client.chat.completions.create(
                model="tiny",
                messages=messages,
                max_completion_tokens=9,
                stream=True,
                stream_options={"include_usage": True},
            )
            *chunks, last = stream
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
            assert last.usage is not None
            assert last.usage.completion_tokens == 9

            with pytest.raises(openai.BadRequestError, match="unknown field `colour`"):
                client.completions.create(model="tiny", prompt="a", extra_body={"colour": 1})
            with pytest.raises(openai.NotFoundError, match="model must be tiny"):
                client.completions.create(model="gpt-4", prompt="a")
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()

    async def main(server: Listening) -> None:
        await trio.to_thread.run_sync(talk, server.url)

    with_server(slots, main, api_key="secret-secret")


def test_a_connection_that_is_closed_frees_its_slot(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        streams = [await server.connect() for _ in range(6)]
        for stream in streams:
            await stream.send_all(LONG)
        for stream in streams[:4]:
            await read_until(stream, b"data: ")
        assert await server.held() == 4
        for stream in streams:
            await stream.aclose()
        while server.driver.live:
            await trio.lowlevel.checkpoint()
        assert await server.held() == 0
        assert server.driver.counters.new_tokens < 4 * 200

    with_server(slots, main)


def test_a_connection_is_used_again(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with await server.connect() as stream:
            for body in (b'{"prompt": "a", "max_tokens": 2}', b"{", b'{"prompt": "a", "max_tokens": 2, "stream": true}'):
                await stream.send_all(post(body))
                status = {b"{": b"400"}.get(body, b"200")
                ends = {b"{": b"invalid_json"}.get(body, b"[DONE]" if b"stream" in body else b"usage")
                assert (await read_until(stream, ends)).startswith(b"HTTP/1.1 " + status)
                await read_until(stream, b"0\r\n\r\n") if b"stream" in body else None

    with_server(slots, main)


def test_a_body_that_nobody_reads_holds_up_nothing(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with await server.connect() as stream, trio.open_nursery() as nursery:
            big = b"x" * 3_000_000
            nursery.start_soon(_send_while_it_goes, stream, post(big))
            assert (await read_until(stream, b"body_too_large")).startswith(b"HTTP/1.1 413")
            nursery.cancel_scope.cancel()
        async with await server.connect() as stream:
            await stream.send_all(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
            await read_until(stream, b"ok")

    with_server(slots, main, bounds=Bounds(body_bytes_max=1000))


async def _send_while_it_goes(stream: trio.SocketStream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError:
        return


def test_a_client_that_reads_nothing_holds_no_slot(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with await server.connect() as stream:
            await stream.send_all(LONG)
            while not server.driver.counters.ended:
                await trio.sleep(0.01)
            assert await server.held() == 0
            data = await read_until(stream, b"[DONE]")
            assert data.count(b"data: ") > 100

    with_server(slots, main)


def test_a_shutdown_ends_what_goes_on_and_says_so(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with await server.connect() as stream:
            await stream.send_all(LONG)
            await read_until(stream, b"data: ")
            server.stop.set()
            assert b"shutting down" in await read_until(stream, b'"failed"')
            await server.over.wait()
            assert server.left == Left(1, "")

    with_server(slots, main, grace_s=0)


def test_a_head_that_comes_slowly_is_served(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with await server.connect() as stream:
            whole = post(b'{"prompt": "hello", "max_tokens": 1}')
            await stream.send_all(whole[:20])
            await trio.sleep(HEAD_S / 6)
            await stream.send_all(whole[20:])
            assert (await read_until(stream, b"usage")).startswith(b"HTTP/1.1 200")

    with_server(slots, main, clock=MockClock(rate=20))


class Reading(Honest):
    """Reads what its client has, whenever it is stepped."""

    client: socket.socket
    seen: list[int]

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        data = b"" if self.seen else b"data: "  # before the first step there is nothing to read
        with contextlib.suppress(BlockingIOError):
            data += self.client.recv(65536)
        self.seen.append(data.count(b"data: "))
        return super().step(rows)


def test_a_token_is_at_its_client_before_the_next_step_begins() -> None:
    factory = Scripted(Reading)

    async def main(server: Listening) -> None:
        Reading.seen = []
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as Reading.client:
            Reading.client.setblocking(False)
            Reading.client.send(post(b'{"prompt": [5], "max_tokens": 20, "stream": true}'))
            while server.driver.counters.new_tokens < 20:
                await trio.sleep(0)

    with_server(factory, main)
    assert Reading.seen == [1] * 20


def test_the_command_serves_until_it_is_told_to_end() -> None:
    command = [sys.executable, "-m", "fuzz", "serve", "--port", "0", "--grace-seconds", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving tiny on slots\n"
        url = process.stdout.readline().removeprefix("listening on ").strip()
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
            assert client.completions.create(model="tiny", prompt="hello", max_tokens=3).usage is not None
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == "stopped: 1 requests, 0 of them cut short\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
