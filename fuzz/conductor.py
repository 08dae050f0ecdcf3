"""The conductor: a trio task that owns every choice of a replay and takes each one from the schedule.

Which op comes next, which client acts, which rows advance: nothing is left to trio's own order, to the clock or to the
order of a dict. Clients are trio tasks with a bounded stream each. There is one *baton*: the conductor hands it to a client,
that client does what it was woken for and hands it back, and whoever holds it is the only task that can run. A client is
woken to submit, to give up, and to hear: when its stream ends or is full, and in every step that waits for it. (Waking
every client for every token as well took a fifth of a replay and changed nothing: hearing a token asks nothing of the
target.)

One step is one virtual second, and the conductor moves the clock: nothing sleeps, so nothing depends on when trio would
wake it. It also expires deadlines itself, by submission, at the start of a step: trio breaks ties between equal deadlines
by memory address.

Nothing that the target raises leaves this module: it becomes a `Crashed` event.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from trio.testing import MockClock

from targets.protocol import (
    Asked,
    Audited,
    Cancel,
    Crashed,
    Emitted,
    Event,
    Factory,
    Finished,
    Op,
    Reason,
    Refused,
    Request,
    Schedule,
    Stalled,
    Step,
    Stepped,
    Submit,
    Target,
    Trace,
    submissions,
)

Result = TypeVar("Result")

IDLE_STEPS_MAX = 4
"""A target is stalled once so many steps in a row brought no event while requests were live."""
STREAM_EVENTS_MAX = 16
"""As many events a client's stream holds before the client must hear them."""
RUNAWAY_TOKENS = 4
"""A request that got so many tokens more than it asked for never ends."""


def replay(factory: Factory, schedule: Schedule) -> Trace:
    """Runs a schedule on a fresh target, in a trio loop of its own.

    Raises:
        BadInput: if the schedule's settings are not the target's.
    """
    return run_trio(play, factory, schedule)


def run_trio(main: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
    """Runs an async function with the virtual clock that `play` needs; a whole campaign may share one loop."""
    result: Result = trio.run(main, *arguments, clock=MockClock())
    return result


async def play(factory: Factory, schedule: Schedule) -> Trace:
    """As `replay`, in the trio loop of the caller (whose clock is a `MockClock`)."""
    target = factory.open(schedule.settings)
    conductor = Conductor(target, schedule, audits=factory.control.audit)
    try:
        await conductor.run()
    finally:
        target.close()
    return tuple(conductor.trace)


class Errand(enum.Enum):
    """What a client is woken for, other than to give up for a `Reason`."""

    SUBMIT = enum.auto()
    HEAR = enum.auto()


class Client:
    """One client, a trio task: it hands in its request, hears its stream, and gives up when told to.

    Attributes:
        heard: Tokens received so far.
        ended: Whether its stream is over.
        reply: What the target said to its last call.
        unheard: Its stream, as far as it has not heard it: at most STREAM_EVENTS_MAX events.
        deadline: The virtual second in which it gives up by itself.
    """

    def __init__(self, target: Target, submission: int, request: Request) -> None:
        self.target = target
        self.submission = submission
        self.request = request
        self.heard = 0
        self.submitted = False
        self.ended = False
        self.deadline = float("inf")
        self.reply: list[Event] = []
        self.unheard: list[Event] = []
        self.wake, self._woken = trio.open_memory_channel[Errand | Reason](1)

    @property
    def live(self) -> bool:
        """Whether it has asked and still awaits an end."""
        return self.submitted and not self.ended

    async def run(self, back: trio.MemorySendChannel[None]) -> None:
        """Does what it is woken for, and hands the baton back."""
        async for errand in self._woken:
            if errand is not Errand.HEAR:
                self.reply = self.call(errand)
                self.unheard += self.reply
            for event in self.unheard:
                self.hear(event)
            self.unheard.clear()
            back.send_nowait(None)

    def call(self, errand: Errand | Reason) -> list[Event]:
        """Submits or gives up; what the target raises is an event like any other."""
        try:
            if isinstance(errand, Reason):
                return self.target.cancel(self.submission, errand)
            self.submitted = True
            if self.request.deadline_s is not None:
                self.deadline = trio.current_time() + self.request.deadline_s
            return self.target.submit(self.submission, self.request)
        except Exception as error:  # whatever the target raises is a finding
            return [Crashed("cancel" if isinstance(errand, Reason) else "submit", _sentence(error), (self.submission,))]

    def hear(self, event: Event) -> None:
        """Takes one event of its stream in."""
        if isinstance(event, Emitted):
            self.heard += 1
        elif isinstance(event, Finished | Refused):
            self.ended = True


class Conductor:
    """Replays one schedule on one target; afterwards `trace` is what happened."""

    def __init__(self, target: Target, schedule: Schedule, audits: bool) -> None:
        self.target = target
        self.schedule = schedule
        self.audits = audits
        self.trace: list[Event] = []
        self.steps = 0
        self.idle_steps = 0
        self.over = False

    async def run(self) -> None:
        """Plays every op, then steps until every request has ended or nothing moves."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock), "a replay runs in virtual time"
        self.clock = clock
        back, self.returned = trio.open_memory_channel[None](1)
        self.clients = [
            Client(self.target, submission, request) for submission, request in enumerate(submissions(self.schedule))
        ]
        self.coming = iter(self.clients)
        async with trio.open_nursery() as nursery:
            for client in self.clients:
                nursery.start_soon(client.run, back)
            for index, op in enumerate(self.schedule.ops):
                if not self.over:
                    self.trace.append(Asked(index))
                    await self.play(op)
            if not self.over:
                self.trace.append(Asked(len(self.schedule.ops)))
                while self.waiting():
                    await self.step(None)
            for client in self.clients:
                client.wake.close()

    async def play(self, op: Op) -> None:
        """One op of the schedule."""
        if isinstance(op, Submit):
            await self.order(next(self.coming), Errand.SUBMIT)
        elif isinstance(op, Cancel):
            await self.order(self.clients[op.submission], Reason.CANCELLED)
        elif isinstance(op, Step):
            for _ in range(op.count):
                await self.step(op.rows)
        else:
            client = self.clients[op.submission]
            while not (self.over or client.ended or client.heard >= op.tokens):
                await self.step(None)
                await self.hand(client, Errand.HEAR)

    def waiting(self) -> bool:
        """Whether some request has not ended and may still do so."""
        return not self.over and any(client.live for client in self.clients)

    async def order(self, client: Client, errand: Errand | Reason) -> None:
        """Has a client submit or give up."""
        await self.hand(client, errand)
        self.record(client.reply)
        if isinstance(errand, Reason):
            self.account()

    async def hand(self, client: Client, errand: Errand | Reason) -> None:
        """Hands the baton to a client and waits until it comes back."""
        client.wake.send_nowait(errand)
        await self.returned.receive()

    async def tell(self, client: Client, event: Event) -> None:
        """Puts an event in a client's stream, and has it hear where the stream is over or full."""
        client.unheard.append(event)
        if not isinstance(event, Emitted) or len(client.unheard) == STREAM_EVENTS_MAX:
            await self.hand(client, Errand.HEAR)

    async def step(self, rows: tuple[int, ...] | None) -> None:
        """One step of the target, one virtual second."""
        if self.over:
            return
        self.trace.append(Stepped(self.steps))
        self.steps += 1
        now = self.clock.current_time()
        for client in self.clients:
            if client.live and client.deadline <= now:
                await self.order(client, Reason.DEADLINE)
        events = self.advance(rows)
        self.record(events)
        for event in events:
            if isinstance(event, Emitted | Finished | Refused):
                await self.tell(self.clients[event.submission], event)
        self.account()
        self.give_up_if_stuck(moved=bool(events), everyone=rows is None)
        self.clock.jump(1)

    def advance(self, rows: tuple[int, ...] | None) -> list[Event]:
        """Steps the target; what it raises is an event like any other."""
        try:
            return self.target.step(rows)
        except Exception as error:  # whatever the target raises is a finding
            live = tuple(client.submission for client in self.clients if client.live)
            return [Crashed("step", _sentence(error), live)]

    def record(self, events: list[Event]) -> None:
        """Writes down what the target said."""
        self.trace += events
        if any(isinstance(event, Crashed) for event in events):
            self.over = True

    def account(self) -> None:
        """Writes down the target's own account of its storage."""
        if self.audits and not self.over:
            audit = self.target.audit()
            if audit is not None:
                self.trace.append(Audited(audit))

    def give_up_if_stuck(self, moved: bool, everyone: bool) -> None:
        """Ends the replay where requests wait and nothing moves, or where one gets tokens for ever."""
        live = [client for client in self.clients if client.live]
        if everyone:
            self.idle_steps = 0 if moved or not live else self.idle_steps + 1
        runaway = [client for client in live if client.heard > client.request.max_new_tokens + RUNAWAY_TOKENS]
        stuck = runaway or (live if self.idle_steps >= IDLE_STEPS_MAX else [])
        if stuck and not self.over:
            self.trace.append(Stalled(tuple(client.submission for client in stuck), self.idle_steps))
            self.over = True


def _sentence(error: Exception) -> str:
    """An exception as one line, without memory addresses or line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
