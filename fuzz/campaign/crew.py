"""Crew: the worker processes of a campaign, as the supervisor has them. Who dies or hangs is replaced, on another shard."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

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


class Hand(Protocol):
    """One worker, wherever it is. To be ended."""

    @property
    def order(self) -> Order:
        """What it is to do."""

    @property
    def works(self) -> bool:
        """Whether it has begun: its first sign is that the target is built, the second that something is played."""

    def look(self) -> End | None:
        """How it ended, and None while it goes on. Who hangs is killed."""

    def stop(self) -> None:
        """Tells it to stop, once."""

    def end(self) -> None:
        """Kills it if it goes on, and gives back what it held."""

    def fate(self) -> str:
        """How it ended, in words."""

    def output(self) -> str:
        """What it printed last."""


Hire = Callable[[Order, float], Hand]
"""Starts a worker with an order, that hangs once it gives no sign of life for so many seconds."""


@dataclass
class NearHand:
    """A worker on this machine.

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
        """As `Hand.works`."""
        return self.beats > 1

    def look(self) -> End | None:
        """As `Hand.look`."""
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
        """As `Hand.stop`."""
        if self.told_s is None:
            self.told_s = time.monotonic()
            self.process.interrupt()

    def end(self) -> None:
        """As `Hand.end`."""
        self.process.end()

    def output(self) -> str:
        """As `Hand.output`."""
        return self.process.output()

    def fate(self) -> str:
        """As `Hand.fate`."""
        status = self.process.status
        name = f"exited with status {status}"
        if status < 0:
            try:
                name = f"was killed by {signal.Signals(-status).name}"
            except ValueError:
                name = f"was killed by signal {-status}"
        words = self.process.last_words()
        return f"shard {self.order.number} {name}" + (f": {words[-1]}" if words else "")
