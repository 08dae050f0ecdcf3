"""The rival: `transformers serve` with continuous batching beside `slotfuzz serve`, on one model and under one load.

Both serve one folder, in one thread of arithmetic each, and answer the same texts with as many tokens. Rounds alternate.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import psutil
import trio

from stress.benches.byte_model import save_byte_model
from stress.benches.paired import Factor, factor_of
from stress.benches.served import END_S, serving
from stress.benches.wire import connected, post, read_reply
from targets.protocol import BadInput

OURS, THEIRS = "slotfuzz serve", "transformers serve"
LENGTHS = (4, 12, 31, 48, 64)
BLOCK_TOKENS = 32
START_S = 180.0
FIRST_CHARACTER, CHARACTERS = 32, 95
"""Printable ASCII: a token each."""
INSTALLED = "from transformers.utils.import_utils import is_serve_available as found; raise SystemExit(not found())"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What both are asked.

    Attributes:
        clients: Each asks when it was answered.
        each: Requests of each client.
        tokens: Of each answer.
        slots: So many requests may run at once.
    """

    model: str
    dtype: str
    slots: int
    clients: int
    each: int
    tokens: int
    rounds: int
    seed: int


class Round(msgspec.Struct, frozen=True):
    """What one server did in one round; `processor_us`, the processor's time a token, does not ask who else was busy."""

    tokens_per_s: float
    processor_us: float
    p50_ms: float
    p99_ms: float


class Rivals(msgspec.Struct, frozen=True):
    """Both, round by round, and how many times the other's tokens ours gives: a second, and a second of its processor."""

    load: Load
    rounds: dict[str, tuple[Round, ...]]
    factor: Factor
    processor_factor: Factor


def compare(load: Load, python: str) -> Rivals:
    """Measures; `python` is the interpreter of an environment that has what `transformers serve` takes.

    Raises:
        BadInput: where it has not, or one of them can't serve.
    """
    try:
        found = subprocess.run([python, "-c", INSTALLED], capture_output=True, check=False).returncode == 0
    except OSError:
        found = False
    if not found:
        raise BadInput("--python", "an interpreter that has transformers[serving] installed", python)
    rounds: dict[str, list[Round]] = {OURS: [], THEIRS: []}
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        save_byte_model(load.model, load.dtype, folder)
        words = ("--model", str(folder), "--dtype", load.dtype, "--set", f"slots={load.slots}", "--queue-max", "4096")
        ours, theirs = undo.enter_context(serving(*words)), undo.enter_context(_transformers(load, folder, python))
        ports = {OURS: (ours.port, ours.process.pid), THEIRS: theirs}
        texts = _texts(load)
        for round_ in range(load.rounds + 1):
            for name in sorted(ports, reverse=bool(round_ % 2)):
                measured = trio.run(_round, *ports[name], str(folder), texts, load.tokens)
                if round_:  # the first one warms up
                    rounds[name].append(measured)
    rates, costs = (
        {name: [getattr(each, field) for each in of] for name, of in rounds.items()}
        for field in ("tokens_per_s", "processor_us")
    )
    factors = (
        factor_of(rates[OURS], rates[THEIRS], load.seed),
        factor_of(costs[THEIRS], costs[OURS], load.seed),
    )
    return Rivals(load, {name: tuple(of) for name, of in rounds.items()}, *factors)


@contextmanager
def _transformers(load: Load, folder: Path, python: str) -> Iterator[tuple[int, int]]:
    """Serves while it is entered; yields the port and the process. Its pool has room for all that may run at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    blocks = load.slots * -(-(max(LENGTHS) + load.tokens) // BLOCK_TOKENS)
    words = ["serve", str(folder), "--continuous-batching", "--device", "cpu", "--dtype", load.dtype]
    words += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    words += ["--cb-block-size", str(BLOCK_TOKENS), "--cb-num-blocks", str(blocks)]
    words += ["--cb-max-batch-tokens", str(load.slots * max(LENGTHS))]
    with ExitStack() as undo:
        said = undo.enter_context(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(
            [python, "-m", "transformers.cli.transformers", *words],
            stdout=said,
            stderr=said,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        undo.callback(process.wait)
        undo.callback(process.kill)
        until = time.monotonic() + START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > until:
                said.seek(0)
                raise BadInput("--python", "one whose transformers can serve the model", python, said.read()[-500:])
            time.sleep(0.2)
        yield port, process.pid
        process.terminate()
        process.wait(timeout=END_S)


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _texts(load: Load) -> list[list[str]]:
    """What each client asks."""
    drawn = random.Random(load.seed)

    def text() -> str:
        return "".join(chr(FIRST_CHARACTER + drawn.randrange(CHARACTERS)) for _ in range(drawn.choice(LENGTHS)))

    return [[text() for _ in range(load.each)] for _ in range(load.clients)]


async def _round(port: int, process: int, model: str, texts: list[list[str]], tokens: int) -> Round:
    """All clients, each to its end."""
    took_ms: list[float] = []

    async def client(mine: list[str]) -> None:
        async with connected(port) as connection:
            for text in mine:
                began_s = time.monotonic()
                body = {"model": model, "prompt": text, "max_tokens": tokens, "temperature": 0, "stream": True}
                await connection.send_all(post(msgspec.json.encode(body | {"stream_options": {"include_usage": True}})))
                reply = await read_reply(connection)
                counted = re.search(rb'"completion_tokens": ?(\d+)', reply.body)
                assert reply.status == 200, reply
                assert counted is not None, reply
                assert int(counted[1]) == tokens, "nothing ends an answer but its length"
                took_ms.append(1000 * (time.monotonic() - began_s))

    spent_s, began_s = _processor_s(process), time.monotonic()
    async with trio.open_nursery() as nursery:
        for mine in texts:
            nursery.start_soon(client, mine)
    seconds = time.monotonic() - began_s
    p50, p99 = (round(float(each), 1) for each in np.quantile(took_ms, (0.5, 0.99)))
    count = len(took_ms) * tokens
    return Round(round(count / seconds, 1), round(1e6 * (_processor_s(process) - spent_s) / count, 1), p50, p99)


def _processor_s(process: int) -> float:
    """The processor's time that a process has taken."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def format_rivals(found: Rivals) -> str:
    """A line a server."""
    load = found.load
    lines = [
        f"{load.model}, {load.dtype}: {load.clients} clients on {load.slots} slots, {load.each} requests each, "
        f"{load.tokens} new tokens, {load.rounds} rounds, seed {load.seed}"
    ]
    for name, rounds in found.rounds.items():
        rate, cost_us, p50, p99 = (
            sum(map(float, each)) / len(rounds) for each in zip(*map(msgspec.structs.astuple, rounds), strict=True)
        )
        lines.append(
            f"{name:<20} {rate:8.1f} tokens a second, {cost_us:8.1f} µs of the processor each; a request p50 {p50:8.1f} ms, "
            f"p99 {p99:8.1f} ms"
        )
    lines.append(f"{'ours of theirs':<20} {found.factor} times the tokens a second")
    lines.append(f"{'':<20} {found.processor_factor} times the tokens a second of the processor")
    return "\n".join(lines)
