"""Gauges: what the endpoint says of itself while it is loaded, and whether it has given everything back once it is idle."""

from __future__ import annotations

import time

import gevent
import psutil

from stress.load.client import Client
from stress.load.desk import Desk
from stress.load.gauged import HELD, MEMORY, Gauged, read_gauges
from stress.load.plan import Plan

IDLE_S = 1.0
"""Idle is who has had nothing in flight for so long."""
SETTLE_S = 10.0
"""After the end everything is given back within so many seconds."""
LOOK_S = 0.2


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
