"""Forwards: the time spent in those of a target and of the reference, how full the target's were, how much was padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from targets.protocol import Admitted, Audited, Drafted, Emitted, Prefilled, Request, Stepped, Trace


class Fill(msgspec.Struct, forbid_unknown_fields=True):
    """Of the forwards of several replays; zero everywhere where the target's network is out of reach.

    Attributes:
        rows: Of all forwards together, with those that only fill a batch up.
        slots: That many rows there could have been; zero where the target does not tell of its slots.
        places: For tokens, in these rows.
        fed: Tokens of requests that were in them.
    """

    rows: int = 0
    slots: int = 0
    places: int = 0
    fed: int = 0

    def add(self, other: Fill) -> None:
        """Counts another one in."""
        self.rows += other.rows
        self.slots += other.slots
        self.places += other.places
        self.fed += other.fed

    @property
    def padding_share(self) -> float | None:
        """The share of the places in which no request's token was; None where none were seen."""
        return max(0.0, 1 - self.fed / self.places) if self.places else None

    @property
    def batch_fill(self) -> float | None:
        """Rows of a forward over slots, on average; None where either is not known."""
        return self.rows / self.slots if self.slots else None


class Forwards(msgspec.Struct, frozen=True):
    """Of a search.

    Attributes:
        target_s, reference_s: Seconds in them.
        seen: Whether the target's network is within reach.
        fill: Of the target's, variants left out.
    """

    target_s: float
    reference_s: float
    seen: bool
    fill: Fill

    def share_outside(self, seconds: float) -> float | None:
        """The share of these seconds that was not spent in forwards; None where the target's are out of reach."""
        return max(0.0, 1 - (self.target_s + self.reference_s) / seconds) if self.seen and seconds else None


def tokens_fed(trace: Trace, requests: Sequence[Request]) -> int:
    """How many of the requests' tokens went through the network in a trace; each time, where one was preempted."""
    cells: dict[int, int] = {}
    answered: Counter[int] = Counter()
    guessed: dict[int, int] = {}
    fed = 0
    for event in trace:
        if isinstance(event, Admitted):
            cells[event.submission] = event.cached
        elif isinstance(event, Stepped):
            guessed.clear()
        elif isinstance(event, Drafted):
            fed += event.tokens
            guessed[event.submission] = len(requests[event.submission].prompt) + answered[event.submission]
        elif isinstance(event, Prefilled | Emitted):
            who = event.submission
            now = event.cells if isinstance(event, Prefilled) else len(requests[who].prompt) + answered[who]
            answered[who] += isinstance(event, Emitted)
            fed += max(0, min(now, guessed.get(who, now)) - cells.get(who, 0))
            cells[who] = max(now, cells.get(who, 0))
    return fed


def slots_told(trace: Trace) -> int:
    """How many slots a target has, by the last of its accounts; zero where it gave none."""
    return next((event.audit.slots for event in reversed(trace) if isinstance(event, Audited)), 0)
