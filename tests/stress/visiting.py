"""Visits: an ASGI application as a client sees it, without a socket, and the endpoint around a target, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import trio
from starlette.applications import Starlette

from stress.endpoint.app import Bounds, Service
from stress.endpoint.driver import Driver
from stress.endpoint.tokens import ByteTokenizer, Tokenizer
from targets.protocol import Factory, Setting

END = 257
"""The id that ends an answer of the tiny models."""
JSON = (b"content-type", b"application/json")


class Answer(NamedTuple):
    """A whole reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each event of a stream; the last one is always [DONE]."""
        *events, done, nothing = self.body.decode().split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        return [msgspec.json.decode(event.removeprefix("data: ")) for event in events]

    @property
    def error(self) -> Any:
        """What an error says: that it has the form of an error is checked here, once."""
        assert self.headers["content-type"] == "application/json"
        (name, error), *more = self.json.items()
        assert (name, more) == ("error", [])
        assert error.keys() == {"message", "type", "param", "code"}
        return error


class Visit:
    """One request, whose client may send slowly, look at what has come, and hang up."""

    def __init__(self, app: Starlette, method: str, path: str, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.app = app
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"host", b"test"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.say, self._heard = trio.open_memory_channel[dict[str, Any]](1000)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.over = trio.Event()
        self._news = trio.Event()

    async def run(self) -> None:
        await self.app(self.scope, self._heard.receive, self._send)
        self.over.set()

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
        self._news.set()
        await trio.lowlevel.checkpoint()

    def send_body(self, data: bytes, more: bool = False) -> None:
        self.say.send_nowait({"type": "http.request", "body": data, "more_body": more})

    def hang_up(self) -> None:
        self.say.send_nowait({"type": "http.disconnect"})

    async def pieces(self, count: int) -> None:
        """Waits until so many events have come."""
        while self.body.count(b"\n\n") < count:
            self._news = trio.Event()
            await self._news.wait()

    @property
    def answer(self) -> Answer:
        return Answer(self.status, self.headers, self.body)


class Served:
    """The endpoint around a target."""

    def __init__(self, driver: Driver, app: Starlette, nursery: trio.Nursery) -> None:
        self.driver = driver
        self.app = app
        self.nursery = nursery

    def visit(self, path: str, body: object, *headers: tuple[bytes, bytes], method: str = "POST") -> Visit:
        """Sends a request; its body is whole unless it is None."""
        visit = Visit(self.app, method, path, (JSON, *headers))
        if body is not None:
            visit.send_body(body if isinstance(body, bytes) else msgspec.json.encode(body))
        self.nursery.start_soon(visit.run)
        return visit

    async def ask(self, path: str, body: object, *headers: tuple[bytes, bytes], method: str = "POST") -> Answer:
        """Sends a request and waits for the whole reply."""
        visit = self.visit(path, body, *headers, method=method)
        await visit.over.wait()
        return visit.answer

    async def get(self, path: str, *headers: tuple[bytes, bytes]) -> Answer:
        return await self.ask(path, b"", *headers, method="GET")

    async def complete(self, **body: object) -> Answer:
        return await self.ask("/v1/completions", {"prompt": "hello"} | body)

    async def chat(self, **body: object) -> Answer:
        return await self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]} | body)

    async def metrics(self) -> dict[str, float]:
        """Each sample by its name and labels."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in samples}

    async def steps(self, count: int) -> None:
        """Waits until the target has taken so many more steps."""
        until = self.driver.counters.steps + count
        while self.driver.counters.steps < until:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def served(
    factory: Factory,
    settings: Mapping[str, Setting] | None = None,
    *,
    queue_max: int = 64,
    bounds: Bounds | None = None,
    api_key: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> AsyncIterator[Served]:
    """Serves while it is entered."""
    driver = Driver(factory, settings or {}, queue_max)
    tokenizer = tokenizer or ByteTokenizer(factory.vocabulary, factory.special_ids, (END,))
    app = Service(driver, tokenizer, "tiny", bounds or Bounds()).application(api_key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        yield Served(driver, app, nursery)
        nursery.cancel_scope.cancel()
