"""Asking: one request of an OpenAI-compatible endpoint, and everything that is heard of it, as an `Exchange`.

Prompts go as token ids unless they were text, answers come in pieces.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import trio

from stress.chunks import Choice, error_of, piece_of, read_chunk, usage_of
from stress.transcript import Exchange, Piece, Question, Usage
from stress.wording import PATHS, Dialect, body_of
from targets.protocol import BadInput, Request

CONNECT_S = 10.0
SILENT_S = 120.0
"""A stream that says nothing for so long is cut."""
CONNECTIONS_MAX = 1024


class Endpoint:
    """An endpoint that is asked.

    Attributes:
        model: As it calls it.
        dialect: Which fields it is asked with.
    """

    def __init__(self, client: httpx2.AsyncClient, model: str, dialect: Dialect) -> None:
        self.client = client
        self.model = model
        self.dialect = dialect

    async def ask(
        self,
        question: Request | Question,
        number: int = 0,
        user: str = "asked",
        hear: Callable[[int], None] = lambda _: None,
        gone: trio.CancelScope | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> Exchange:
        """Asks, and hears the answer to its end, or until `gone` is cancelled, which hangs up.

        Args:
            hear: Is told after each piece how many tokens there are.
            sent: Is told when the whole request is on its way.
        """
        hearing = Hearing(hear, sent)
        request, text, chat = question if isinstance(question, Question) else Question(question)
        path = PATHS["chat" if chat else "completions"].removeprefix("/v1")
        sent_s = time.monotonic()
        scope = gone or trio.CancelScope()
        with scope:
            await self._ask(path, body_of(request, self.model, self.dialect, chat=chat, text=text), hearing)
        outcome: Any = "cancelled" if scope.cancelled_caught else hearing.outcome
        return Exchange(
            number=number,
            user=user,
            request=request,
            sent_s=sent_s,
            ended_s=time.monotonic(),
            outcome=outcome,
            status=hearing.status,
            pieces=tuple(hearing.pieces),
            finish_reason=hearing.finish,
            usage=hearing.usage,
            submission=hearing.submission,
            slots=hearing.slots,
            cached=hearing.cached,
            error=hearing.error,
            prompt_text=text,
            chat=chat,
        )

    async def _ask(self, path: str, body: dict[str, Any], hearing: Hearing) -> None:
        try:
            about = {"trace": hearing.trace}
            async with self.client.stream("POST", path, json=body, extensions=about) as response:
                hearing.status = response.status_code
                if response.status_code != 200:
                    said = (await response.aread()).decode(errors="replace")
                    hearing.refused(said)
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        hearing.take(line.removeprefix("data: "))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            hearing.error, hearing.outcome = f"{type(error).__name__}: {error}", "unreached"
        except httpx2.HTTPError as error:
            hearing.error = hearing.error or f"{type(error).__name__}: {error}"


class Hearing:
    """What is heard of one request."""

    def __init__(self, hear: Callable[[int], None], sent: Callable[[], None] = lambda: None) -> None:
        self.hear = hear
        self.sent = sent
        self.status = 0
        self.pieces: list[Piece] = []
        self.tokens = 0
        self.finish: str | None = None
        self.usage: Usage | None = None
        self.submission: int | None = None
        self.slots: tuple[int, ...] = ()
        self.cached: int | None = None
        self.error = ""
        self.outcome = "failed"

    async def trace(self, event: str, info: object) -> None:
        """What the connection is doing."""
        if event.endswith("send_request_body.complete"):
            self.sent()

    def refused(self, said: str) -> None:
        """A status that is no answer."""
        self.error = said[:500]
        self.outcome = "refused" if 400 <= self.status < 500 or self.status == 503 else "failed"

    def take(self, data: str) -> None:
        """One message of a stream."""
        self.outcome = "cut" if self.outcome == "failed" and not self.error else self.outcome
        if data == "[DONE]":
            self.outcome = "answered" if not self.error else self.outcome
            return
        try:
            chunk = read_chunk(data.encode())
        except msgspec.DecodeError as error:
            self.error, self.outcome = f"an event is no answer: {error}", "failed"
            return
        if chunk.error is not None:
            self.error, self.outcome = error_of(data.encode()), "failed"
            return
        for choice in chunk.choices:
            self._take_choice(choice)
        if chunk.usage is not None:
            self.usage = usage_of(chunk.usage)

    def _take_choice(self, choice: Choice) -> None:
        piece = piece_of(choice, time.monotonic())
        if piece is not None:
            self.pieces.append(piece)
            self.tokens += len(piece.tokens)
        self.finish = choice.finish_reason or self.finish
        about = choice.slotfuzz
        if about is not None:
            self.submission, self.slots, self.cached = about.submission, about.slots, about.cached
        self.hear(self.tokens)


@asynccontextmanager
async def endpoint(url: str, api_key: str | None = None, dialect: Dialect | None = None) -> AsyncIterator[Endpoint]:
    """An endpoint by its URL, as `http://127.0.0.1:8000/v1`; its dialect, unless it is told, by who says that he owns it.

    Raises:
        BadInput: where nobody listens there, or it is no such endpoint.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx2.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)
    timeout = httpx2.Timeout(SILENT_S, connect=CONNECT_S, pool=None)
    base = url.rstrip("/")
    base += "" if base.endswith("/v1") else "/v1"
    async with httpx2.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=timeout, trust_env=False) as client:
        try:
            found = await client.get("/models")
            card = msgspec.json.decode(found.content)["data"][0]
            model, owner = str(card["id"]), card.get("owned_by")
        except (httpx2.HTTPError, msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
            rule = "the URL of an OpenAI-compatible endpoint that can be reached"
            raise BadInput("--endpoint", rule, url, f"{type(error).__name__}: {error}") from error
        known: Dialect = {"slotfuzz": "slotfuzz", "vllm": "vllm"}.get(str(owner), "openai")  # type: ignore[assignment]
        yield Endpoint(client, model, dialect or known)
