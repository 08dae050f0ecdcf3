"""Guard: who may ask the service anything.

A browser on this machine would post a stranger's form to a service on loopback, and a stranger's name may be made to point
there. So a request must name the host that we listen on, and what changes something must come from a page of ours, or from
no page at all. With a key, only who sends it is served, as a bearer token or in a cookie that the login page sets.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie

from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "slotfuzz_key"
OPEN_PATHS = ("/health", "/login", "/live.js")
_SAFE = ("GET", "HEAD")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware. `hosts` are the names, with their port, under which we may be asked."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], api_key: str | None) -> None:
        self.app = app
        self.hosts = hosts
        self.api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self.refusal(scope, headers)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, receive, guarded)

    def refusal(self, scope: Scope, headers: dict[str, str]) -> PlainTextResponse | RedirectResponse | None:
        """Why a request is not served; None if it is."""
        host = headers.get("host", "")
        if host not in self.hosts:
            return PlainTextResponse(f"Host must be one of {', '.join(sorted(self.hosts))}", 421)
        origin = headers.get("origin")
        if scope["method"] not in _SAFE and origin is not None and origin != f"http://{host}":
            return PlainTextResponse("Origin must be the service's own", 403)
        if self.api_key is None or scope["path"] in OPEN_PATHS or self.knows_key(headers):
            return None
        if "text/html" in headers.get("accept", "") and scope["method"] in _SAFE:
            return RedirectResponse("/login", 303)
        return PlainTextResponse("the API key must be the service's", 401)

    def knows_key(self, headers: dict[str, str]) -> bool:
        """Whether a request has the key. It is compared in constant time."""
        assert self.api_key is not None
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if not given:
            try:
                held = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            except CookieError:
                held = None
            given = "" if held is None else held.value
        return hmac.compare_digest(given.encode(), self.api_key.encode())
