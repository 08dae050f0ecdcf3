"""Served: `slotfuzz serve` in a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import trio

from stress.benches.wire import connected, read_reply
from targets.protocol import BadInput

GAUGES = ("slotfuzz_slots_used", "slotfuzz_requests_running", "slotfuzz_requests_waiting")
END_S = 60.0


class Served:
    """A server that runs."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port = port
        self.process = process
        self._seen = psutil.Process(process.pid)

    @property
    def processor_s(self) -> float:
        """The processor's time that it has taken."""
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    @property
    def resident_bytes(self) -> int:
        """Its memory."""
        return int(self._seen.memory_info().rss)

    async def held(self) -> dict[str, float]:
        """Gauges that should be zero when nobody is served, and are not."""
        async with connected(self.port) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n")
            page = (await read_reply(stream)).body.decode()
        found = {name: re.search(rf"^{name} (\S+)$", page, re.MULTILINE) for name in GAUGES}
        return {name: float(match[1]) for name, match in found.items() if match and float(match[1])}

    async def settle(self, seconds: float) -> dict[str, float]:
        """Waits until it holds nothing, at most so long; returns what it still holds."""
        held = await self.held()
        with trio.move_on_after(seconds):
            while held:
                await trio.sleep(0.1)
                held = await self.held()
        return held


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    """Serves while it is entered.

    Raises:
        BadInput: where it can't, in the server's own words.
    """
    command = [sys.executable, "-m", "fuzz", "serve", "--port", "0", "--grace-seconds", "1", *words]
    with ExitStack() as undo:
        said = undo.enter_context(tempfile.TemporaryFile("w+"))  # a pipe that nobody reads would fill and hold the server up
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        undo.callback(process.communicate)
        undo.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        if match is None:
            process.wait(timeout=END_S)
            said.seek(0)
            raise BadInput("the server's options", "such that it serves", " ".join(words), " ".join(said.read().split()))
        yield Served(int(match[1]), process)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=END_S)
