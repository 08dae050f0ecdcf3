"""Gauges: what the endpoint says of itself while it is loaded, and whether it has given everything back once it is idle."""

from __future__ import annotations

import time

import gevent
import msgspec
import psutil

from stress.load.client import Client
from stress.load.desk import Desk
from stress.load.plan import Plan

HELD = (
    "slotfuzz_requests_waiting",
    "slotfuzz_requests_running",
    "slotfuzz_slots_used",
    "slotfuzz_pages_used",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
)
"""What is zero where nobody is served."""
MEMORY = ("slotfuzz_cache_bytes", "process_resident_memory_bytes")
IDLE_S = 1.0
"""Idle is who has had nothing in flight for so long."""
SETTLE_S = 10.0
"""After the end everything is given back within so many seconds."""
LOOK_S = 0.2


class Gauged(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the endpoint.

    Attributes:
        looks: How often its gauges were read.
        peaks: The largest value of each gauge that should be zero when idle.
        idle_looks: Looks while nothing had been in flight for a second; the last one is after the end.
        held_idle: Gauges that were not zero then, with their largest value.
        memory_first_bytes, memory_last_bytes, memory_max_bytes: By gauge, and of the process where it is watched: the first
            value after a tenth of the run, so that what grows once and stays is not growth.
    """

    looks: int
    peaks: dict[str, float]
    idle_looks: int
    held_idle: dict[str, float]
    memory_first_bytes: dict[str, float]
    memory_last_bytes: dict[str, float]
    memory_max_bytes: dict[str, float]


def read_gauges(page: bytes) -> dict[str, float]:
    """Samples by name, those with labels added up."""
    found: dict[str, float] = {}
    for line in page.decode(errors="replace").splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#") and name:
            bare = name.partition("{")[0]
            try:
                found[bare] = found.get(bare, 0.0) + float(value)
            except ValueError:
                continue
    return found


class Watch:
    """Looks at the gauges from time to time. `desk` is None where others ask: then only the end is known to be idle."""

    def __init__(self, client: Client, plan: Plan, desk: Desk | None) -> None:
        self.client = client
        self.plan = plan
        self.desk = desk
        self.began_s = time.monotonic()
        self.looks = self.idle_looks = 0
        self.peaks: dict[str, float] = {}
        self.held_idle: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.most: dict[str, float] = {}

    def run(self) -> None:
        """Looks until it is killed."""
        while True:
            idle = self.desk is not None and self.desk.idle_s >= IDLE_S
            held = self.look()
            if idle and held is not None and self.desk is not None and self.desk.idle_s >= IDLE_S:
                self._note_idle(held)
            gevent.sleep(self.plan.watch_s)

    def settle(self) -> Gauged:
        """The end: nobody asks any more, so everything should be given back soon."""
        until = time.monotonic() + SETTLE_S
        held = self.look()
        while held and any(held.values()) and time.monotonic() < until:
            gevent.sleep(LOOK_S)
            held = self.look()
        if held:
            self._note_idle(held)
        return Gauged(
            looks=self.looks,
            peaks=self.peaks,
            idle_looks=self.idle_looks,
            held_idle={name: value for name, value in self.held_idle.items() if value},
            memory_first_bytes=self.first,
            memory_last_bytes=self.last,
            memory_max_bytes=self.most,
        )

    def look(self) -> dict[str, float] | None:
        """The gauges that should be zero when idle; None where the endpoint does not tell."""
        try:
            found = read_gauges(self.client.get("/metrics"))
        except OSError:
            return None
        self.looks += 1
        held = {name: found[name] for name in HELD if name in found}
        for name, value in held.items():
            self.peaks[name] = max(self.peaks.get(name, 0.0), value)
        memory = {name: found[name] for name in MEMORY if name in found}
        if self.plan.watch_pid is not None and psutil.pid_exists(self.plan.watch_pid):
            memory["resident"] = float(psutil.Process(self.plan.watch_pid).memory_info().rss)
        settled = time.monotonic() - self.began_s >= self.plan.run_s / 10
        for name, value in memory.items():
            if settled:
                self.first.setdefault(name, value)
            self.last[name] = value
            self.most[name] = max(self.most.get(name, 0.0), value)
        return held

    def _note_idle(self, held: dict[str, float]) -> None:
        self.idle_looks += 1
        for name, value in held.items():
            self.held_idle[name] = max(self.held_idle.get(name, 0.0), value)
