"""Loads for tests: a plan of a few words, a server in a process of its own, and locust in another."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from stress.load.plan import OPTIONS, Plan, read_plan
from stress.transcript import Exchange, Piece
from targets.protocol import Request

ROOT = Path(__file__).parents[2]
HOST = "http://127.0.0.1:1"


def planned(host: str | None = HOST, users: int = 8, run_s: float | None = 5, **options: Any) -> Plan:
    """A plan as locust would read it."""
    defaults = {option.flag.removeprefix("--").replace("-", "_"): option.default for option in OPTIONS}
    return read_plan(defaults | {"seed": "1"} | options, host, users, run_s)


def exchange(*times_s: float, number: int = 0, **changes: Any) -> Exchange:
    """An answer of one token at each of these times, sent at time zero."""
    pieces = tuple(Piece(at_s=at_s, text="x", tokens=(7,)) for at_s in times_s)
    asked = Request(prompt=(1,), max_new_tokens=max(len(times_s), 1))
    fields: dict[str, Any] = {"outcome": "answered", "status": 200, "finish_reason": "length"} | changes
    ended_s = max(times_s, default=1.0)
    return Exchange(number=number, user="visitor", request=asked, sent_s=0.0, ended_s=ended_s, pieces=pieces, **fields)


class Server(NamedTuple):
    """`slotfuzz serve` in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Ends it as nobody should."""
        self.process.kill()


@contextmanager
def serving(*words: str) -> Iterator[Server]:
    """Serves the tiny model while it is entered."""
    command = [sys.executable, "-m", "fuzz", "serve", "--port", "0", "--grace-seconds", "1", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        url = process.stdout.readline().removeprefix("listening on ").strip().removesuffix("/v1")
        yield Server(url, process)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    finally:
        process.kill()
        process.communicate()


class Run(NamedTuple):
    """A run of locust that has ended."""

    code: int
    said: str
    folder: Path

    @property
    def load(self) -> Any:
        """What `load.json` says."""
        return json.loads((self.folder / "load.json").read_bytes())


def start_locust(host: str, *words: str) -> subprocess.Popen[str]:
    """Starts locust on our locustfile."""
    command = [sys.executable, "-m", "locust", "-f", "stress/locustfile.py", "--host", host, *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end_of(process: subprocess.Popen[str], folder: Path) -> Run:
    """Waits for it; nothing may have gone wrong within it."""
    try:
        said = process.communicate(timeout=90)[0]
    finally:
        process.kill()
        process.wait()
    return Run(process.returncode, said, folder)


def locust(host: str, folder: Path, *words: str) -> Run:
    """Runs it to its end, without a page."""
    return end_of(start_locust(host, "--headless", "--only-summary", "--out", str(folder), *words), folder)


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def line_of(said: str, pattern: str) -> re.Match[str]:
    """The first line that matches."""
    found = re.search(pattern, said)
    assert found, said
    return found
