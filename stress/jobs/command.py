"""The command line of the job service: `slotfuzz service`. Only click is imported before the command runs."""

from __future__ import annotations

from pathlib import Path

import click

from fuzz.commandline import Number, bad, check_folder
from stress.command import read_key


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("slotfuzz-service"), show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=Number(int, 0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="Serve only who sends the key in this file.")
@click.option("--allow-target", "allowed", multiple=True, help="A package.module:factory that jobs may import; repeatable.")
@click.option("--jobs", "at_once", type=Number(int, 1, 64), default=1, show_default=True, help="Jobs that run at once.")
@click.option(
    "--grace-seconds", type=Number(float, 0, 86_400), default=30, show_default=True, help="For jobs to stop at a shutdown."
)
def service(
    out: Path,
    host: str,
    port: int,
    api_key_file: Path | None,
    allowed: tuple[str, ...],
    at_once: int,
    grace_seconds: float,
) -> int:
    """Take campaigns and load tests as jobs over HTTP and on a web page, until it is told to end (SIGINT or SIGTERM)."""
    try:
        from stress.jobs.server import Serving, serve_jobs
    except ImportError as error:
        raise bad("slotfuzz service", "installed (pip install 'slotfuzz[stress]')", f"no {error.name}") from error
    for each in allowed:
        if ":" not in each:
            raise bad("--allow-target", "package.module:factory", each)
    key = None if api_key_file is None else read_key(api_key_file)
    if key is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise bad("--api-key-file", "given where others than this machine can ask", "nothing", f"--host {host}")
    check_folder(out)
    return serve_jobs(Serving(out, host, port, key, frozenset(allowed), at_once, grace_seconds))
