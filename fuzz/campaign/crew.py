"""Crew: the worker processes of a campaign, as the supervisor has them. Who dies or hangs is replaced, on another shard."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from fuzz.apart import Apart
from fuzz.campaign.shard import Order

SILENT_S = 300.0
"""A worker that begins no replay for so long hangs. It ends its target's process far sooner than that."""
START_SILENT_S = 900.0
"""Before its first replay: a large model is built, and its reference measured."""
STOP_S = 20.0
"""So long a worker may take to come to an end once it was told to."""


class End(Enum):
    """How a worker ended."""

    DONE = auto()
    MISUSED = auto()
    DIED = auto()
    HUNG = auto()


@dataclass
class Hand:
    """One worker.

    Attributes:
        beat_s: When it last gave a sign of life.
        told_s: When it was told to stop; None while it was not.
    """

    order: Order
    silent_s: float = SILENT_S
    process: Apart = field(init=False)
    beats: int = 0
    beat_s: float = field(default_factory=time.monotonic)
    told_s: float | None = None

    def __post_init__(self) -> None:
        self.process = Apart("fuzz.campaign.shard_main", said=msgspec.json.encode(self.order))

    @property
    def works(self) -> bool:
        """Whether it has begun: its first sign is that the target is built, the second that something is played."""
        return self.beats > 1

    def look(self) -> End | None:
        """How it ended, and None while it goes on. Who hangs is killed."""
        if self.process.over():
            if self.process.status == 0:
                return End.DONE
            return End.MISUSED if self.process.status == 2 else End.DIED
        now = time.monotonic()
        if self.process.beats != self.beats:
            self.beats, self.beat_s = self.process.beats, now
        stopping = self.told_s is not None and now - self.told_s > STOP_S
        if stopping or now - self.beat_s > (self.silent_s if self.works else max(self.silent_s, START_SILENT_S)):
            self.process.end()
            return End.HUNG
        return None

    def stop(self) -> None:
        """Tells it to stop, once."""
        if self.told_s is None:
            self.told_s = time.monotonic()
            self.process.interrupt()

    def fate(self) -> str:
        """How it ended, in words."""
        status = self.process.status
        name = f"exited with status {status}"
        if status < 0:
            try:
                name = f"was killed by {signal.Signals(-status).name}"
            except ValueError:
                name = f"was killed by signal {-status}"
        words = self.process.last_words()
        return f"shard {self.order.number} {name}" + (f": {words[-1]}" if words else "")
