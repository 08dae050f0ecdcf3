"""The driver: the one task that touches the target. It steps while anybody waits, and hands everybody what is theirs.

Handlers call `submit` and `leave`, which only write down what is wanted; the driver does it between two steps, in the order
in which it was asked. So a request is handed in before the next step, and one that nobody waits for any more is cancelled
before the next step.

The step itself runs on this thread, and everybody else waits for it. In a worker thread, measured on two cores with 16
streams, the tiny model gave a quarter fewer tokens a second (a step is 2 ms of calls, which hold the interpreter's lock, and
handing it over costs more than what then overlaps), and one of 50 million weights a tenth more.

A target that raises is replaced by a fresh one. Who waited for it is told so; who comes later does not notice.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import trio

from stress.endpoint.counters import Counters, ForwardWatch
from stress.endpoint.orders import Order, Outcome, Ticket
from targets.protocol import (
    Admitted,
    Audit,
    Emitted,
    Event,
    Factory,
    Finished,
    Prefilled,
    Reason,
    Refused,
    Request,
    Setting,
    Target,
)

RAISED = (Exception, SystemExit)
"""What a target may raise without ending more than itself."""
TURNS_MIN, TURNS_MAX = 2, 12
"""After a step the driver waits, for so many turns of the event loop, until who was listening listens again. It takes three
or four to hear a token, get hold of the connection and send it, and some more to begin or end a reply. So a token is at its
client before the next step begins; with one turn it would be there a step or two later, and several together, which saves
some 30 microseconds a token. That a client has hung up takes two.
"""
IDLE_S = 0.001
"""So long the driver sleeps after a step that moved nobody: a target that stands still should not keep a core busy."""
QUEUE_FULL = "queue full"
"""The words in which a built-in target refuses what may come again."""


class Busy(Exception):  # noqa: N818 (nothing is wrong)
    """The queue has no room for an order."""


class Closing(Exception):  # noqa: N818 (nothing is wrong)
    """The driver takes no more orders."""


class _TargetRaised(Exception):  # noqa: N818 (it says what it is)
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Driver:
    """Owns a target.

    Attributes:
        live: Requests that were handed in and have not ended, by submission.
        waiting: How many of them, and of those about to be handed in, were never admitted.
        closing: Whether no more are taken.
    """

    def __init__(self, factory: Factory, settings: Mapping[str, Setting], queue_max: int) -> None:
        self.factory = factory
        self.settings = dict(settings)
        self.queue_max = queue_max
        self.target: Target = factory.open(self.settings)
        self.counters = Counters()
        self.watch = ForwardWatch(factory.module(self.settings))
        self.live: dict[int, Ticket] = {}
        self.waiting = 0
        self.closing = False
        self._submissions = 0
        self._arriving: list[Ticket] = []
        self._leaving: list[Ticket] = []
        self._soonest = math.inf  # no live request has an earlier deadline
        self._asking: list[trio.MemorySendChannel[Audit | None]] = []
        self._spoken: set[Order] = set()
        self._wake = trio.Event()
        self._empty = trio.Event()

    # What handlers call

    def submit(self, requests: Sequence[Request], seconds: float) -> Order:
        """Takes an order in, all of it or nothing.

        Args:
            requests: Where one asks for one more answer to another's prompt, `sample_of` is that one's place among these.
            seconds: After which what has not ended is cancelled.

        Raises:
            Busy: if the queue has no room for all of them.
            Closing: if no more are taken.
        """
        if self.closing:
            raise Closing
        if self.waiting + len(requests) > self.queue_max:
            self.counters.ended[Outcome.FULL] += len(requests)
            raise Busy
        first = self._submissions
        self._submissions += len(requests)
        self.waiting += len(requests)
        placed = [
            request if request.sample_of is None else msgspec.structs.replace(request, sample_of=first + request.sample_of)
            for request in requests
        ]
        order = Order(first, placed, trio.current_time() + seconds)
        self._arriving += order.tickets
        self._wake.set()
        return order

    def hang_up(self, order: Order) -> None:
        """The client of an order hears no more."""
        order.hang_up()
        for ticket in order.tickets:
            self.leave(ticket)

    def leave(self, ticket: Ticket, outcome: Outcome = Outcome.CANCELLED, why: str = "") -> None:
        """Nobody wants any more of a request; one that is over already is left alone."""
        if ticket.outcome is None:
            ticket.end(outcome, why)
            self._leaving.append(ticket)
            self._wake.set()

    async def audit(self) -> Audit | None:
        """The target's account of its storage as it is between two steps; None where it gives none."""
        said, heard = trio.open_memory_channel[Audit | None](1)
        self._asking.append(said)
        self._wake.set()
        return await heard.receive()

    async def drain(self, seconds: float) -> int:
        """Takes no more orders, and waits until all have ended; after `seconds` cancels the rest. Returns how many."""
        self.closing = True
        with trio.move_on_after(seconds):
            await self._emptied()
        left = [ticket for ticket in (*self.live.values(), *self._arriving) if ticket.outcome is None]
        for ticket in left:
            self.leave(ticket, Outcome.FAILED, "the server is shutting down")
        await self._emptied()
        return len(left)

    async def _emptied(self) -> None:
        while self._busy():
            self._empty = trio.Event()
            await self._empty.wait()

    def _busy(self) -> bool:
        return bool(self.live or self._arriving or self._leaving)

    # The task

    async def run(self) -> None:
        """Drives the target until it is cancelled; then closes it."""
        try:
            while True:
                self._wake = trio.Event()
                moved = self._turn()
                if not self._busy():
                    self._empty.set()
                    await self._wake.wait()
                elif moved:
                    await self._be_heard()
                else:
                    await trio.sleep(IDLE_S)
        finally:
            self.closing = True
            self._fail("the server has stopped")
            self.watch.close()
            self.target.close()

    async def _be_heard(self) -> None:
        """Lets everybody else run, until those who were spoken to have passed on what they heard."""
        spoken, self._spoken = self._spoken, set()
        for turns in range(1, TURNS_MAX + 1):
            await trio.lowlevel.checkpoint()
            if turns >= TURNS_MIN and not any(order.busy for order in spoken):
                return

    def _turn(self) -> bool:
        """Does what was asked since the last step, then steps; says whether anything came of that."""
        try:
            self._hand_in()
            self._expire()
            self._see_off()
            self._account()
            events = self._step() if self.live else []
        except _TargetRaised as raised:
            self._replace(raised.error)
            return True
        return bool(events)

    def _hand_in(self) -> None:
        """Submits what has arrived."""
        arriving, self._arriving = self._arriving, []
        for ticket in arriving:
            self.live[ticket.submission] = ticket
            self._soonest = min(self._soonest, ticket.order.deadline)
        for ticket in arriving:
            self._deliver(self._call(self.target.submit, ticket.submission, ticket.request))

    def _expire(self) -> None:
        """Ends what is past its deadline."""
        now = trio.current_time()
        if now < self._soonest:
            return
        for ticket in self.live.values():
            if ticket.order.deadline <= now:
                self.leave(ticket, Outcome.DEADLINE, "it had not ended by its deadline")
        self._soonest = min((each.order.deadline for each in self.live.values() if each.outcome is None), default=math.inf)

    def _see_off(self) -> None:
        """Cancels what nobody wants any more."""
        leaving, self._leaving = self._leaving, []
        for ticket in leaving:
            reason = Reason.DEADLINE if ticket.outcome is Outcome.DEADLINE else Reason.CANCELLED
            events = self._call(self.target.cancel, ticket.submission, reason)
            self._over(ticket)
            self._deliver(events)

    def _account(self) -> None:
        """Tells those who asked who owns what."""
        asking, self._asking = self._asking, []
        audit = None
        try:
            if asking and self.factory.control.audit:
                audit = self._call(self.target.audit)
        finally:
            for each in asking:
                each.send_nowait(audit)

    def _step(self) -> list[Event]:
        """One step of the target."""
        self.counters.steps += 1
        events: list[Event] = self._call(self.target.step)
        self._deliver(events)
        return events

    def _call(self, method: Callable[..., Any], *arguments: object) -> Any:
        """Calls a method of the target."""
        try:
            return method(*arguments)
        except RAISED as error:  # whatever the target raises ends the target, not the server
            raise _TargetRaised(error) from error

    def _deliver(self, events: list[Event]) -> None:
        """Hands everybody what is theirs; what is nobody's, or comes for one who has left, is dropped."""
        counters = self.counters
        for event in events:
            ticket = self.live.get(getattr(event, "submission", -1))
            if ticket is None:
                continue
            self._spoken.add(ticket.order)
            if isinstance(event, Emitted):
                self._fed(ticket, len(ticket.request.prompt) + ticket.tokens)
                counters.new_tokens += 1
                ticket.give(event.token, event.logprobs)
                if ticket.runaway:
                    self.leave(ticket, Outcome.FAILED, "the target gave more tokens than were asked for")
            elif isinstance(event, Finished):
                ticket.end(Outcome(event.reason))
                self._over(ticket)
            elif isinstance(event, Admitted):
                self._begin(ticket, event)
            elif isinstance(event, Prefilled):
                self._fed(ticket, event.cells)
            elif isinstance(event, Refused):
                ticket.end(Outcome.FULL if event.why == QUEUE_FULL else Outcome.REFUSED, event.why)
                self._over(ticket)

    def _begin(self, ticket: Ticket, event: Admitted) -> None:
        """A request was given a slot, for the first time or after it was preempted."""
        if not ticket.slots:
            self.waiting -= 1
            ticket.cached = event.cached
            self.counters.prompt_tokens += len(ticket.request.prompt)
            self.counters.cached_tokens += event.cached
        ticket.slots.append(event.slot)
        ticket.cells = event.cached

    def _fed(self, ticket: Ticket, cells: int) -> None:
        """So many of a request's tokens have been through the network now."""
        self.counters.fed_tokens += cells - ticket.cells
        ticket.cells = cells

    def _over(self, ticket: Ticket) -> None:
        """A request is over for the target as well."""
        if self.live.pop(ticket.submission, None) is not None:
            assert ticket.outcome is not None, "its client was told"
            self.counters.ended[ticket.outcome] += 1
            self.waiting -= not ticket.slots

    def _fail(self, why: str) -> None:
        """Ends everything."""
        for ticket in [*self.live.values(), *self._arriving]:
            self.live[ticket.submission] = ticket
            ticket.end(Outcome.FAILED, why)
            self._over(ticket)
        self._arriving, self._leaving, self._soonest = [], [], math.inf

    def _replace(self, error: BaseException) -> None:
        """Puts a fresh target in the place of one that raised."""
        self.counters.replaced += 1
        self._fail(f"the target raised {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        with contextlib.suppress(*RAISED):  # it is given up, whatever it says
            self.target.close()
        self.target = self.factory.open(self.settings)
