"""Reception: takes a request's body in, and notices when its client is gone. ASGI middleware.

One task listens to each client from the first to the last byte of its reply. It keeps the body, as far as that may be long,
and throws the rest away: what nobody reads would fill the server's queue and hold up its connection for ever. When the
client is gone it cancels what is done for it.

Once the last of a reply is handed on, a client that is gone is nobody's business: the server says so of every client then,
and is itself at work on behalf of the handler.
"""

from __future__ import annotations

import contextlib

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stress.endpoint.errors import ApiError


class Reception:
    """Wraps an application.

    Attributes:
        body_bytes_max: Longer bodies are refused.
        body_s: A body that is not there after so many seconds is given up.
    """

    def __init__(self, app: ASGIApp, body_bytes_max: int, body_s: float) -> None:
        self.app = app
        self.body_bytes_max = body_bytes_max
        self.body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = _Visit(self, receive, send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visit.listen, nursery.cancel_scope)
            await self.app(scope, visit.receive, visit.send)
            nursery.cancel_scope.cancel()


class _Visit:
    """One request and its reply."""

    def __init__(self, reception: Reception, receive: Receive, send: Send) -> None:
        self.reception = reception
        self._receive = receive
        self._send = send
        self._body = bytearray()
        self._whole = trio.Event()
        self._too_long = self._answered = False

    async def listen(self, scope: trio.CancelScope) -> None:
        """Hears the client out."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self._answered:
                    scope.cancel()
                return
            self._body += message.get("body", b"")
            if len(self._body) > self.reception.body_bytes_max:
                self._too_long = True
                self._body.clear()
            if self._too_long or not message.get("more_body", False):
                self._whole.set()

    async def receive(self) -> Message:
        """The whole body, as one message.

        Raises:
            ApiError: where it is too long or does not come.
        """
        with trio.move_on_after(self.reception.body_s):
            await self._whole.wait()
        if self._too_long:
            limit = self.reception.body_bytes_max
            raise ApiError(413, f"the body must have at most {limit:,} bytes, got more", code="body_too_large")
        if not self._whole.is_set():
            limit_s = self.reception.body_s
            raise ApiError(408, f"the body must come within {limit_s:g} seconds", kind="timeout_error", code="body_too_slow")
        return {"type": "http.request", "body": bytes(self._body), "more_body": False}

    async def send(self, message: Message) -> None:
        """Hands a message on.

        A client that has read its whole reply may hang up before the server has said that this was all: then the connection
        is being closed already, and the last message goes nowhere.
        """
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        self._answered = True
        with contextlib.suppress(trio.BusyResourceError):
            await self._send(message)
