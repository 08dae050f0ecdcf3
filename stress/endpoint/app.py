"""The application: routes, who may use them, and how an order becomes a reply."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stress.endpoint.answers import FINISH, Choice, Delta
from stress.endpoint.asking import Asked, Asker
from stress.endpoint.driver import Busy, Closing, Driver
from stress.endpoint.errors import ApiError, busy, closing, of_end
from stress.endpoint.metrics import CONTENT_TYPE, exposition
from stress.endpoint.orders import End, Order, Outcome
from stress.endpoint.reception import Reception
from stress.endpoint.replies import Chats, Completions, Form, Letter, Usage, whereabouts
from stress.endpoint.tokens import Tokenizer
from stress.offer import Offer

OPEN_PATHS = ("/health",)
"""What may be asked without the key."""


class Bounds(msgspec.Struct, frozen=True):
    """What one client may ask of the server.

    Attributes:
        deadline_s: A request that has not ended after so many seconds is given up.
        body_bytes_max, body_s: Of a request's body: bytes, and seconds until it is there.
    """

    deadline_s: float = 600.0
    body_bytes_max: int = 4_000_000
    body_s: float = 30.0


class Service:
    """One served model.

    Attributes:
        name: What clients call the model.
        offer: What it says of the target; None for nothing.
    """

    def __init__(self, driver: Driver, tokenizer: Tokenizer, name: str, bounds: Bounds, offer: Offer | None = None) -> None:
        self.driver = driver
        self.tokenizer = tokenizer
        self.name = name
        self.bounds = bounds
        self.offer = offer
        self.asker = Asker(driver.factory, driver.settings, tokenizer, name)
        self.began = int(time.time())
        self.run = secrets.token_hex(4)

    def application(self, api_key: str | None = None) -> Starlette:
        """The ASGI application; with a key, only who has it is served."""
        guards = [Middleware(Reception, body_bytes_max=self.bounds.body_bytes_max, body_s=self.bounds.body_s)]
        if api_key is not None:
            guards.append(Middleware(KeyGuard, api_key=api_key))
        app = Starlette(
            routes=[
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models, methods=["GET"]),
                Route("/v1/models/{name:path}", self.model, methods=["GET"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ],
            middleware=guards,
            exception_handlers={ApiError: _told, HTTPException: _refused, Exception: _broken},
        )
        app.router.redirect_slashes = False
        return app

    # Routes

    async def complete(self, request: Request) -> Response:
        """Continues texts."""
        return await self.answer(request, self.asker.completion, Completions(self.tokenizer))

    async def chat(self, request: Request) -> Response:
        """Continues a conversation."""
        return await self.answer(request, self.asker.chat, Chats(self.tokenizer))

    async def models(self, request: Request) -> Response:
        """The one model."""
        return _json({"object": "list", "data": [self.card()]})

    async def model(self, request: Request) -> Response:
        """The one model, by name."""
        if request.path_params["name"] != self.name:
            raise ApiError(404, f"model must be {self.name}, got another one", param="model", code="model_not_found")
        return _json(self.card())

    async def health(self, request: Request) -> Response:
        """Whether more is taken."""
        if self.driver.closing:
            raise closing()
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(exposition(self.driver, await self.driver.audit()), media_type=CONTENT_TYPE)

    def card(self) -> dict[str, object]:
        """What is told of the model."""
        card: dict[str, object] = {
            "id": self.name,
            "object": "model",
            "created": self.began,
            "owned_by": "slotfuzz",
            "max_model_len": self.asker.context_tokens_max,
        }
        return card if self.offer is None else card | {"slotfuzz": self.offer}

    # Orders

    async def answer(self, request: Request, read: Callable[[bytes], Asked], form: Form) -> Response:
        """Hands an order in and waits for its reply, or for the first piece of it.

        Raises:
            ApiError: where there will be none.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the content type must be application/json")
        asked = read(await request.body())
        seconds = min(asked.deadline_s or self.bounds.deadline_s, self.bounds.deadline_s)
        try:
            order = self.driver.submit(asked.requests, seconds)
        except Busy:
            raise busy(self.driver.queue_max) from None
        except Closing:
            raise closing() from None
        reply = Answering(self, order, asked, form)
        try:
            if asked.stream:
                return Stream(reply, await reply.deltas())
            body = await reply.whole()
            reply.leave()
            return Response(body, media_type="application/json")
        except BaseException:
            reply.leave()
            raise


class Answering:
    """An order whose reply is in the making."""

    def __init__(self, service: Service, order: Order, asked: Asked, form: Form) -> None:
        self.driver = service.driver
        self.order = order
        self.asked = asked
        self.form = form
        self.choices = [Choice(ticket, asked, service.tokenizer) for ticket in order.tickets]
        first = order.tickets[0].submission
        self.letter = Letter(form, f"{service.run}-{first}", service.name, service.driver.factory.identity)

    @property
    def ended(self) -> bool:
        """Whether all was told."""
        return all(choice.ended for choice in self.choices)

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self.driver.hang_up(self.order)

    async def deltas(self) -> list[tuple[int, Delta]]:
        """What comes next, each with its choice.

        Raises:
            ApiError: where a choice will never have an answer.
        """
        found = []
        for event in await self.order.hear():
            choice = self.choices[event.place]
            if isinstance(event, End) and not choice.ended and event.outcome not in FINISH:
                raise of_end(event, self.driver.queue_max)
            delta = choice.take(event)
            if delta is not None:
                found.append((event.place, delta))
            if choice.stopped:
                self.driver.leave(choice.ticket, Outcome.STOP)
        return found

    async def whole(self) -> bytes:
        """The whole reply."""
        parts: list[list[Delta]] = [[] for _ in self.choices]
        if not self.asked.stops:
            await self.order.settled.wait()
        while not self.ended:
            for index, delta in await self.deltas():
                parts[index].append(delta)
        logprobs = self.asked.shown is not None
        merged = [
            Delta(
                "".join(delta.text for delta in each),
                [told for delta in each for told in delta.logprobs],
                [token for delta in each for token in delta.ids],
                each[-1].finish,
            )
            for each in parts
        ]
        choices = [
            self.form.whole(index, delta, logprobs, self.extra(index, delta, last=True))
            for index, delta in enumerate(merged)
        ]
        return self.letter.whole(choices, self.usage())

    def event(self, index: int, delta: Delta) -> bytes:
        """A piece as an event of a stream; nothing where it says nothing."""
        if not (delta.text or delta.logprobs or delta.finish or self.asked.ids):
            return b""
        extra = self.extra(index, delta, last=delta.finish is not None)
        return self.letter.event(self.form.piece(index, delta, self.asked.shown is not None, extra))

    def extra(self, index: int, delta: Delta, last: bool) -> dict[str, Any]:
        """What is told beside what OpenAI's API has."""
        extra: dict[str, Any] = {"token_ids": delta.ids} if self.asked.ids else {}
        return extra | ({"slotfuzz": whereabouts(self.order.tickets[index])} if last else {})

    def usage(self) -> Usage:
        """Tokens so far."""
        new = sum(choice.tokens for choice in self.choices)
        return Usage(self.asked.prompt_tokens, new, self.asked.prompt_tokens + new)


class Stream(Response):
    """A reply as server-sent events, one a token; those that are there at the same time go out together.

    What goes wrong once it has begun is told as an event with an error.
    """

    media_type = "text/event-stream"

    def __init__(self, reply: Answering, first: list[tuple[int, Delta]]) -> None:
        self.reply = reply
        self.first = first
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache"})

    def init_headers(self, headers: Any = None) -> None:
        """Of a body whose length nobody knows yet."""
        super().init_headers(headers)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends everything, as it comes."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            reply = self.reply
            openings = [reply.form.opening(index) for index in range(len(reply.choices))]
            head = b"".join(reply.letter.event(each) for each in openings if each is not None)
            deltas = self.first
            while True:
                data = head + b"".join(reply.event(index, delta) for index, delta in deltas)
                head = b""
                if reply.ended:
                    break
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                try:
                    deltas = await reply.deltas()
                except ApiError as error:
                    await send({"type": "http.response.body", "body": b"data: " + error.body() + b"\n\n"})
                    return
            data += reply.letter.last(reply.usage()) if reply.asked.usage else b""
            await send({"type": "http.response.body", "body": data + b"data: [DONE]\n\n"})
        finally:
            self.reply.leave()


class KeyGuard:
    """Middleware that serves only who has the key. It is compared in constant time."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self.expected = b"Bearer " + api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or refuses it."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                error = ApiError(401, "the API key must be the server's", code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "as it was registered"
    return error.response()


async def _refused(request: Request, error: Exception) -> Response:
    """A route or a method that there is not."""
    assert isinstance(error, HTTPException), "as it was registered"
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(404, f"there is no {request.url.path}", code="not_found").response()
    if error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}"
        return ApiError(405, message, code="method_not_allowed", headers=headers).response()
    return ApiError(error.status_code, error.detail, headers=headers).response()


async def _broken(request: Request, error: Exception) -> Response:
    """A bug of ours: it is logged by the server, and nothing of it is told."""
    return ApiError(500, "the server failed", kind="server_error", code="internal_error").response()
