"""Orders and tickets: what a client waits for, and what it is told of each of its requests.

An order is what one client hands in together (several prompts, several answers to each); a ticket is one request of it. All
that is said to an order goes through one stream, which is never full: it has room for as many tokens as were asked for, and
a request that is given more has run away. So a client that reads slowly holds up nobody, itself included: its requests end
and free their slots, and what it has not read waits in its stream.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import trio

from targets.protocol import Request

RUNAWAY_TOKENS = 4
"""A request that got so many tokens more than it asked for never ends."""


class Outcome(enum.StrEnum):
    """How a request ended. The first three are answers, and called as in `targets.protocol.Reason`."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    REFUSED = "refused"
    FULL = "full"
    FAILED = "failed"


ANSWERS = (Outcome.STOP, Outcome.LENGTH, Outcome.CONTEXT)


class Piece(NamedTuple):
    """A token of the request at `place` of its order, with the (id, log-probability) pairs that it asked for."""

    place: int
    token: int
    logprobs: tuple[tuple[int, float], ...] = ()


class End(NamedTuple):
    """The last that is heard of a request; `why` says more of an outcome that is no answer."""

    place: int
    outcome: Outcome
    why: str = ""


class Ticket:
    """One request of an order.

    Attributes:
        slots: Those it was given, one after another.
        cached: As many of its tokens had K and V when it was first admitted.
        cells: As many have them now.
        tokens: As many new ones it was given.
        outcome: None until it is over for its client. The target may hear of it later.
    """

    __slots__ = ("cached", "cells", "order", "outcome", "place", "request", "slots", "submission", "tokens")

    def __init__(self, order: Order, place: int, submission: int, request: Request) -> None:
        self.order = order
        self.place = place
        self.submission = submission
        self.request = request
        self.slots: list[int] = []
        self.cached = self.cells = self.tokens = 0
        self.outcome: Outcome | None = None

    @property
    def runaway(self) -> bool:
        """Whether it was given more than it asked for."""
        return self.tokens >= self.request.max_new_tokens + RUNAWAY_TOKENS

    def give(self, token: int, logprobs: tuple[tuple[int, float], ...]) -> None:
        """Says a token to its client, which may be gone."""
        self.tokens += 1
        if self.outcome is None:
            self.order.say(Piece(self.place, token, logprobs))

    def end(self, outcome: Outcome, why: str = "") -> None:
        """Says how it ended; only the first end counts."""
        if self.outcome is None:
            self.outcome = outcome
            self.order.say(End(self.place, outcome, why))
            if outcome not in ANSWERS or all(ticket.outcome for ticket in self.order.tickets):
                self.order.settled.set()


class Order:
    """Requests that were handed in together, under consecutive submissions, and one stream of what is said to them.

    Attributes:
        deadline: In seconds of trio's clock; what has not ended by then is cancelled.
        settled: All have ended, or one without an answer: who wants the whole reply need not be woken before.
        busy: Somebody was waiting to hear what was said last, and has not come back for more.
    """

    def __init__(self, first: int, requests: Sequence[Request], deadline: float) -> None:
        self.deadline = deadline
        self.tickets = [Ticket(self, place, first + place, request) for place, request in enumerate(requests)]
        self.settled = trio.Event()
        self.busy = self._listening = False
        room = sum(request.max_new_tokens + RUNAWAY_TOKENS + 1 for request in requests)
        self._said, self._heard = trio.open_memory_channel[Piece | End](room)

    def say(self, event: Piece | End) -> None:
        """Puts an event in the stream."""
        self.busy |= self._listening
        self._said.send_nowait(event)

    async def hear(self) -> list[Piece | End]:
        """What was said since the last call, in order: at least one event."""
        self.busy, self._listening = False, True
        events = [await self._heard.receive()]
        self._listening = False
        while True:
            try:
                events.append(self._heard.receive_nowait())
            except trio.WouldBlock:
                return events

    def hang_up(self) -> None:
        """Nobody will hear any more."""
        self.busy = self._listening = False
