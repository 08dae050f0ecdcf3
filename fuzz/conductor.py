"""The conductor: a trio task that owns every choice of a replay and takes each one from the schedule.

Which op comes next, which client acts, which rows advance: nothing is left to trio's own order, to the clock or to the
order of a dict. Clients are trio tasks with a bounded stream each. There is one *baton*: the conductor hands it to a client,
that client does what it was woken for and hands it back, and whoever holds it is the only task that can run. A client is
woken to submit, to give up, and to hear: when its stream is full, and in every step that waits for it. (Waking every
client for every token took a fifth of a replay and changed nothing: hearing a token asks nothing of the target.)

One step is one virtual second, and the conductor moves the clock: nothing sleeps, so nothing depends on when trio would
wake it. It also expires deadlines itself, by submission, at the start of a step: trio breaks ties between equal deadlines
by memory address.

Nothing that the target raises leaves this module: it becomes a `Crashed` event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_args

import trio
from trio.testing import MockClock

from fuzz.clients import RAISED, STREAM_EVENTS_MAX, Client, crashed, troupe
from targets.protocol import (
    Admitted,
    Asked,
    Audited,
    BadInput,
    Cancel,
    Crashed,
    Emitted,
    Event,
    Factory,
    Finished,
    Op,
    Prefilled,
    Reason,
    Refused,
    Schedule,
    Stalled,
    Step,
    Stepped,
    Submit,
    Target,
    Trace,
    in_full,
    submissions,
)

Result = TypeVar("Result")

EVENTS = frozenset(get_args(Event))
HEARD = (Emitted, Finished, Refused)
"""What a target says to a client rather than about it."""
IDLE_STEPS_MAX = 4
"""A target is stalled once so many steps in a row moved none of the requests that were live."""
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


async def play(
    factory: Factory, schedule: Schedule, audits: bool = True, watch: Callable[[Conductor], Target] | None = None
) -> Trace:
    """As `replay`, in the trio loop of the caller (whose clock is a `MockClock`).

    Args:
        audits: Whether the trace has the target's account of its storage after every step, if it can give one.
        watch: Puts a target of its own between the conductor and the one it plays on, and so sees every call.
    """
    try:
        target = factory.open(schedule.settings)
    except BadInput:
        raise
    except RAISED as error:  # whatever the target raises is a finding
        return (crashed("open", error, ()),)
    conductor = Conductor(target, schedule, audits=audits and factory.control.audit)
    if watch is not None:
        conductor.target = watch(conductor)
    try:
        await conductor.run()
    finally:
        conductor.close()
    return tuple(conductor.trace)


class Conductor:
    """Replays one schedule on one target; afterwards `trace` is what happened."""

    def __init__(self, target: Target, schedule: Schedule, audits: bool) -> None:
        self.target = target
        self.schedule = schedule
        self.audits = audits
        self.trace: list[Event] = []
        self.steps = 0
        self.idle_steps = 0
        self.moved = False
        self.cells: dict[int, int] = {}
        self.again = 0
        self.over = False

    async def run(self) -> None:
        """Plays every op, then steps until every request has ended or nothing moves."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock), "a replay runs in virtual time"
        self.clock = clock
        self.clients = [
            Client(self.target, submission, request) for submission, request in enumerate(submissions(self.schedule))
        ]
        self.timed = [client for client in self.clients if client.request.deadline_s is not None]
        self.actors = troupe(len(self.clients))
        self.coming = iter(self.clients)
        for index, op in enumerate(self.schedule.ops):
            if not self.over:
                self.trace.append(Asked(index))
                await self.play(op)
        if not self.over:
            self.trace.append(Asked(len(self.schedule.ops)))
            while self.waiting():
                await self.step(None)

    async def play(self, op: Op) -> None:
        """One op of the schedule."""
        if isinstance(op, Submit):
            client = next(self.coming)
            if client.request.continues is not None:
                client.request = submissions(in_full(self.schedule, tuple(self.trace)))[client.submission]
            await self.call(client, client.submit)
        elif isinstance(op, Cancel):
            await self.give_up(self.clients[op.submission], Reason.CANCELLED)
        elif isinstance(op, Step):
            for _ in range(op.count):
                await self.step(op.rows)
        else:
            client = self.clients[op.submission]
            await self.hand(client, client.hear)
            while not (self.over or client.ended or client.heard >= op.tokens):
                await self.step(None)
                await self.hand(client, client.hear)

    def waiting(self) -> bool:
        """Whether some request has not ended and may still do so."""
        return not self.over and any(client.live for client in self.clients)

    async def hand(self, client: Client, errand: Callable[[], None]) -> None:
        """Hands the baton to a client and waits until it comes back."""
        await self.actors[client.submission].take_baton(errand)

    async def call(self, client: Client, errand: Callable[[], None]) -> None:
        """Has a client call the target, and writes down what it is told."""
        await self.hand(client, errand)
        await self.record(client.reply)

    async def give_up(self, client: Client, reason: Reason) -> None:
        """Has a client cancel."""
        await self.call(client, lambda: client.give_up(reason))
        self.account()

    async def step(self, rows: tuple[int, ...] | None) -> None:
        """One step of the target, one virtual second."""
        if self.over:
            return
        self.trace.append(Stepped(self.steps))
        self.steps += 1
        for client in self.timed:
            if client.live and client.deadline <= self.clock.current_time():
                await self.give_up(client, Reason.DEADLINE)
        if self.over:
            return
        self.moved, before = False, self.again
        await self.record(self.advance(rows))
        self.account()
        self.give_up_if_stuck(rows is None, before)
        self.clock.jump(1)

    def advance(self, rows: tuple[int, ...] | None) -> list[Event]:
        """Steps the target; what it raises is an event like any other."""
        try:
            return self.target.step(rows)
        except RAISED as error:  # whatever the target raises is a finding
            return [self.crash("step", error)]

    async def record(self, events: list[Event]) -> None:
        """Writes down what the target said, and puts in each client's stream what concerns it; a full stream is heard.

        What is no event, or speaks of nobody, ends the replay as a crash would.
        """
        if not isinstance(events, list) or not EVENTS.issuperset(map(type, events)):
            events = [self.crash("answer", TypeError(f"a list of events is due, not {events!r}"))]
        self.trace += events
        for event in events:
            if isinstance(event, HEARD):
                if not 0 <= event.submission < len(self.clients):
                    self.trace.append(self.crash("answer", LookupError(f"there is no request #{event.submission}")))
                    self.over = True
                    return
                client = self.clients[event.submission]
                self.moved |= client.live
                client.unheard.append(event)
                client.ended |= not isinstance(event, Emitted)
                if len(client.unheard) == STREAM_EVENTS_MAX:
                    await self.hand(client, client.hear)
            elif isinstance(event, Admitted):
                self.moved |= event.submission not in self.cells
                self.cells[event.submission] = max(event.cached, self.cells.get(event.submission, 0))
            elif isinstance(event, Prefilled):
                further = event.cells > self.cells.get(event.submission, 0)
                self.moved |= further
                self.again += not further
                self.cells[event.submission] = max(event.cells, self.cells.get(event.submission, 0))
            elif isinstance(event, Crashed):
                self.over = True

    def account(self) -> None:
        """Writes down the target's own account of its storage."""
        if not self.audits or self.over:
            return
        try:
            audit = self.target.audit()
        except RAISED as error:  # whatever the target raises is a finding
            self.trace.append(self.crash("audit", error))
            self.over = True
        else:
            if audit is not None:
                self.trace.append(Audited(audit))

    def close(self) -> None:
        """Closes the target; that this raises counts only if nothing else went wrong before."""
        try:
            self.target.close()
        except RAISED as error:  # whatever the target raises is a finding
            if not self.over:
                self.trace.append(self.crash("close", error))

    def crash(self, doing: str, error: BaseException) -> Crashed:
        """The event for what the target raised, with everyone who was waiting then."""
        return crashed(doing, error, tuple(client.submission for client in self.clients if client.live))

    def give_up_if_stuck(self, everyone: bool, before: int) -> None:
        """Ends the replay where requests wait and none of them moves, or where one gets tokens for ever.

        To move is to be admitted for the first time, to get further than ever through one's tokens, to get another, or to
        end: a target may say much and do nothing. What was preempted goes through its tokens once more, which is no
        move, but is no standstill either, as long as it is not for ever: as often as all that is live has tokens.
        """
        live = [client for client in self.clients if client.live]
        if self.moved or not live:
            self.idle_steps = self.again = 0
        elif everyone:
            tokens = sum(len(client.request.prompt) + client.request.max_new_tokens for client in live)
            self.idle_steps += self.again == before or self.again > tokens
        runaway = [client for client in live if client.heard > client.request.max_new_tokens + RUNAWAY_TOKENS]
        stuck = runaway or (live if self.idle_steps >= IDLE_STEPS_MAX else [])
        if stuck and not self.over:
            self.trace.append(Stalled(tuple(client.submission for client in stuck), self.idle_steps))
            self.over = True
