"""The server: a socket, Hypercorn on trio, the driver beside it, and a shutdown that gives everything back.

Hypercorn sends under a shield: a client that reads nothing would hold up its handler, and a shutdown, for ever. So the
sockets have a user timeout: what the peer does not take in for so long ends the connection.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable

import click
import hypercorn
import hypercorn.trio
import msgspec
import trio
from starlette.types import ASGIApp

from stress.endpoint.app import Bounds, Service
from stress.endpoint.driver import Driver
from stress.endpoint.tokens import tokenizer_of
from stress.offer import Offer
from targets.protocol import Audit, BadInput, Factory, Setting
from targets.registry import DEFAULT_MODEL, TargetSpec

UNREAD_S = 30
"""A client that takes nothing in for so long is cut off."""
HEAD_S = 60
"""So long a connection may take to send the whole head of a request, its first one and any other: slow heads are served.
Hypercorn hangs up on slower ones without a word, as it has nobody to ask for a reply before there is a head."""
BACKLOG = 1024
GONE_S = 3.0
"""So long replies that are made may take to reach their clients after a shutdown."""


class Serving(msgspec.Struct, frozen=True):
    """What is served, where, and to whom.

    Attributes:
        port: 0 for a free one.
        api_key: None where nobody needs one.
        queue_max: Requests that may wait for a slot.
        grace_s: Seconds that requests have to end in at a shutdown.
    """

    spec: TargetSpec
    factory: Factory
    settings: dict[str, Setting]
    host: str
    port: int
    api_key: str | None
    queue_max: int
    bounds: Bounds
    grace_s: float


def serve_forever(serving: Serving) -> int:
    """Serves until a signal comes; returns 0, or 1 where the target did not get everything back.

    Raises:
        BadInput: where the target can't be served or the address can't be listened on.
    """
    if not serving.factory.control.stepped:
        raise BadInput("target", "one that moves only when it is stepped", serving.spec.target, "serve")
    own = ":" in serving.spec.target
    usual = serving.spec.model == DEFAULT_MODEL  # which each target reads in its own way
    name = serving.factory.name if own else serving.factory.identity.split()[0].rstrip(",") if usual else serving.spec.model
    settings = dict(serving.settings)
    if any(knob.name == "queue_max" for knob in serving.factory.knobs):
        settings.setdefault("queue_max", serving.queue_max)
    tokenizer = tokenizer_of(serving.factory, "" if own else serving.spec.model)
    driver = Driver(serving.factory, settings, serving.queue_max)
    offer = Offer(serving.spec.target, serving.spec.model, serving.spec.faults, settings)
    service = Service(driver, tokenizer, name, serving.bounds, offer)
    bound = listen(serving.host, serving.port)
    click.echo(f"serving {name} on {serving.spec.target}{_planted(serving.spec)}")
    click.echo(f"listening on {url_of(bound)}/v1")
    return trio.run(_serve_until_signal, service, serving, bound)


async def _serve_until_signal(service: Service, serving: Serving, bound: socket.socket) -> int:
    left = await serve(service.driver, service.application(serving.api_key), bound, interrupted, serving.grace_s)
    click.echo(f"stopped: {sum(service.driver.counters.ended.values())} requests, {left.cut} of them cut short")
    if left.held:
        click.echo(f"the target still holds {left.held}", err=True)
    return int(bool(left.held))


def _planted(spec: TargetSpec) -> str:
    return f", planted: {' '.join(spec.faults)}" if spec.faults else ""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        BadInput: where there is none to be had.
    """
    with contextlib.ExitStack() as undo:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = undo.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError as error:
            rule = "an address that can be listened on"
            raise BadInput("--host, --port", rule, f"{host}:{port}", str(error)) from error
        undo.pop_all()
        return bound


def url_of(bound: socket.socket) -> str:
    """Where a socket listens."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Left(msgspec.Struct, frozen=True):
    """What was left at a shutdown.

    Attributes:
        cut: Requests that had not ended in time.
        held: What the target did not get back, in words; empty if it has everything.
    """

    cut: int
    held: str


async def serve(
    driver: Driver, app: ASGIApp, bound: socket.socket, stop: Callable[[], Awaitable[None]], grace_s: float
) -> Left:
    """Serves until `stop` returns; then takes no more, lets requests end for `grace_s` seconds, and closes the socket."""
    left = Left(0, "")

    async def stopped() -> None:
        nonlocal left
        await stop()
        cut = await driver.drain(grace_s)
        left = Left(cut, held_of(await driver.audit()))

    config = hypercorn.Config()
    config.bind = [f"fd://{bound.detach()}"]
    config.backlog = BACKLOG
    config.keep_alive_timeout = HEAD_S
    config.graceful_timeout = GONE_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("slotfuzz.serve")
    config.loglevel = "WARNING"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        await hypercorn.trio.serve(app, config, shutdown_trigger=stopped)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()
    return left


def held_of(audit: Audit | None) -> str:
    """What a target that serves nobody still holds, in words."""
    if audit is None:
        return ""
    held = {
        "slots": len(audit.held) + len(audit.retiring),
        "waiting requests": len(audit.queued),
        "pages": len(audit.pages.references) if audit.pages else 0,
    }
    return ", ".join(f"{count} {name}" for name, count in held.items() if count)


async def interrupted() -> None:
    """Waits for a signal to end."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
