"""The service's server: a socket, Hypercorn on trio, the runner beside it. At a signal jobs stop, and stay to go on."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import hypercorn
import hypercorn.trio
import msgspec
import trio

from stress.endpoint.server import BACKLOG, GONE_S, interrupted, listen, url_of
from stress.jobs.app import Service
from stress.jobs.runner import Runner
from stress.jobs.store import Store


class Serving(msgspec.Struct, frozen=True):
    """What is served, where, and to whom.

    Attributes:
        at_once: Jobs that run at the same time.
        grace_s: Seconds in which jobs may come to an end at a shutdown.
    """

    folder: Path
    host: str
    port: int
    api_key: str | None
    allowed: frozenset[str]
    at_once: int
    grace_s: float


def serve_jobs(serving: Serving) -> int:
    """Serves until a signal comes.

    Raises:
        BadInput: where the address can't be listened on.
    """
    bound = listen(serving.host, serving.port)
    serving.folder.mkdir(parents=True, exist_ok=True)
    store = Store(serving.folder / "jobs.sqlite")
    runner = Runner(serving.folder.absolute(), store, serving.at_once)
    port = bound.getsockname()[1]
    names = {serving.host, "127.0.0.1", "localhost"}
    hosts = frozenset(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names)
    app = Service(runner, serving.allowed).application(hosts, serving.api_key)
    click.echo(f"listening on {url_of(bound)}")
    config = hypercorn.Config()
    config.bind = [f"fd://{bound.detach()}"]
    config.backlog = BACKLOG
    config.graceful_timeout = GONE_S
    config.include_server_header = False
    config.errorlog = logging.getLogger("slotfuzz.service")
    config.loglevel = "WARNING"

    async def stopped() -> None:
        await interrupted()
        await runner.drain(serving.grace_s)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.run)
            await hypercorn.trio.serve(app, config, shutdown_trigger=stopped)  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()

    trio.run(main)
    store.close()
    click.echo("stopped")
    return 0
