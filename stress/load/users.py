"""Users: what locust spawns. Each is one client of the endpoint; all of a process work at one desk."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import gevent
from gevent.pool import Pool
from locust import User, task
from locust.exception import StopUser

from stress.load.asks import Ask
from stress.load.client import Client
from stress.load.desk import Desk
from stress.load.hearing import Hearing, going_on
from stress.load.mixes import asks, plain
from stress.load.tally import tally
from stress.load.traces import share
from stress.load.wording import body_of

BACKOFF_S, BACKOFF_S_MAX = 0.2, 5.0
"""After a failure a user waits so long, twice as long after the next one."""
UNANSWERED = ("failed", "cut", "refused", "unreached")
"""Outcomes that locust counts as failures."""
VICTIM = (16, 24)
"""Tokens of a victim's prompts and answers."""
LOUD = (1.0, 1.0)
"""A noisy neighbour's, as shares of half of the context."""
QUIET_LOOK_S = 0.05
CHANGE_SHARE = 0.25
WAIT_LOOK_S = 0.5
TURNS_KEPT = 64
"""What was heard longer ago nobody goes on from."""


class Caller(User):
    """A user of the endpoint. `desk` is set before any is spawned.

    Attributes:
        name: How its rows are called.
    """

    abstract = True
    desk: Desk
    name = "user"

    def on_start(self) -> None:
        """Takes a seat."""
        plan = self.desk.plan
        self.number = self.desk.next_user()
        self.opened = plan.arrivals != "closed"
        connections = plan.in_flight_max if self.opened else 1
        self.client = Client(plan.host, plan.api_key, plan.silence_s, connections)
        self.heard: dict[int, Hearing] = {}
        self.failures = 0
        self.pool = Pool(plan.in_flight_max)
        self.pauses = _pauses(plan.arrivals, plan.rate, f"{plan.seed} pauses {self.number}")
        self.due_s = time.monotonic()
        self.asks = self.draw()

    def on_stop(self) -> None:
        """Hangs up whatever it still hears."""
        self.pool.kill()
        self.client.close()

    def draw(self) -> Iterator[Ask]:
        """What it asks."""
        return asks(self.desk.plan, self.number)

    def label(self) -> str:
        """How the rows of what it asks now are called."""
        return self.name

    @task
    def go_on(self) -> None:
        """Asks once more, when it is time to."""
        self.hold()
        ask = None if self.desk.closing else next(self.asks, None)
        if ask is None:
            self.pool.join()
            raise StopUser
        if ask.at_s is not None:
            self._send_at(self.desk.began_s + ask.at_s, ask)
        elif self.opened:
            self.due_s += next(self.pauses)
            self._send_at(self.due_s, ask)
        else:
            whole = self.whole(ask)
            if whole is not None:
                self.ask(whole)
                gevent.sleep(self._backoff_s())

    def hold(self) -> None:
        """Waits while it wants nothing."""

    def _send_at(self, moment_s: float, ask: Ask) -> None:
        """Sends at its time, whether earlier ones were answered or not."""
        while not self.desk.closing and (left_s := moment_s - time.monotonic()) > 0:
            gevent.sleep(min(left_s, WAIT_LOOK_S))
        if self.desk.closing:
            return
        if self.pool.full():
            self.desk.unsent += 1
        else:
            self.pool.spawn(self.ask, ask)

    def _backoff_s(self) -> float:
        return min(BACKOFF_S * 2 ** (self.failures - 1), BACKOFF_S_MAX) if self.failures else 0.0

    def whole(self, ask: Ask) -> Ask | None:
        """With what came before it; None where that was not heard, or where it grows too long."""
        if ask.before is None:
            return ask
        before = self.heard.get(ask.before)
        return None if before is None else going_on(before, ask, self.desk.plan.context)

    def ask(self, ask: Ask) -> None:
        """Sends a request, hears it out, and writes everything down."""
        desk = self.desk
        label = self.label()
        hearing = desk.begin(label, ask)
        body = body_of(hearing.request, desk.plan, desk.model, ask.streamed, hearing.text)
        try:
            self.client.ask(desk.path, body, hearing)
        finally:
            desk.end(hearing)
            self._note(label, hearing)
        self.heard[ask.turn] = hearing
        self.heard.pop(ask.turn - TURNS_KEPT, None)
        self.failures = self.failures + 1 if hearing.outcome in UNANSWERED else 0

    def _note(self, label: str, hearing: Hearing) -> None:
        """Tells locust."""
        exchange = hearing.exchange()
        wrong = exchange.outcome in UNANSWERED
        self.environment.events.request.fire(
            request_type="POST",
            name=f"{self.desk.path} {label}",
            response_time=1000 * (exchange.ended_s - exchange.sent_s),
            response_length=len(exchange.text),
            exception=RuntimeError(f"{exchange.outcome} ({exchange.status}): {exchange.error}") if wrong else None,
            context={},
        )
        tally(self.environment.stats, label, exchange, self.desk.plan.slo)


class Visitor(Caller):
    """Plays the plan's mix."""

    name = "visitor"


class Victim(Caller):
    """Asks for the same little again and again, so that what neighbours do to its latency shows."""

    name = "victim"

    def draw(self) -> Iterator[Ask]:
        """Small greedy requests."""
        return plain(self.desk.plan, self.number, *VICTIM)

    def label(self) -> str:
        """With whether its neighbours are noisy now."""
        if is_at_change(self.desk):
            return "victim at a change"
        return f"victim {'beside noise' if is_noisy(self.desk) else 'in quiet'}"


class Noisy(Caller):
    """Asks for as much as it can, every other period."""

    name = "noisy"

    def draw(self) -> Iterator[Ask]:
        """Large greedy requests."""
        half = self.desk.plan.context // 2
        return plain(self.desk.plan, self.number, int(LOUD[0] * half), int(LOUD[1] * half))

    def hold(self) -> None:
        """Waits in quiet periods."""
        while not is_noisy(self.desk) and not self.desk.closing:
            gevent.sleep(QUIET_LOOK_S)


class Replayer(Caller):
    """Plays its share of a trace."""

    name = "replayer"

    def draw(self) -> Iterator[Ask]:
        """What the trace says."""
        assert self.desk.recorded is not None, "it was read before anybody sat down"
        plan = self.desk.plan
        return share(self.desk.recorded, self.desk.place_of(self.number), plan.users)


def is_noisy(desk: Desk) -> bool:
    """Whether this is a noisy period: every other one, the first is quiet."""
    return int((time.monotonic() - desk.began_s) / desk.plan.period_s) % 2 == 1


def is_at_change(desk: Desk) -> bool:
    """Whether a period has begun so lately that the one before may still be felt; the first one has none before it."""
    periods = (time.monotonic() - desk.began_s) / desk.plan.period_s
    return periods > 1 and periods % 1 < CHANGE_SHARE


def _pauses(arrivals: str, rate: float, seed: str) -> Iterator[float]:
    """Seconds from one arrival of a user to its next; the first one of a constant rate is anywhere in it."""
    drawn = random.Random(seed)
    if arrivals != "poisson":
        yield drawn.random() / rate
    while True:
        yield drawn.expovariate(rate) if arrivals == "poisson" else 1 / rate
