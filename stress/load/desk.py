"""The desk: what one process of a run knows and writes down. Locust's users all work at it.

A line is in the file before anything else happens: what this process heard outlives it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from stress.load.asks import Ask
from stress.load.hearing import Hearing
from stress.load.plan import Plan
from stress.load.wording import spelled
from stress.transcript import Begun, Heard, format_line
from stress.wording import PATHS

TRANSCRIPTS = "transcripts"
USERS_MAX = 100_000
"""No process has more users: their numbers go on from one worker to the next."""


class Desk:
    """One process of a run.

    Attributes:
        model: As the endpoint calls it.
        worker, workers: Which of locust's workers this is, and how many there are.
        recorded: What a trace says; None without one.
        began_s: When the load began here.
        in_flight: Requests that were sent and have not ended.
        closing: Nobody asks any more.
        gone_since_s: Since then nothing was heard from the endpoint but that there is none.
        unsent: Requests that were due while too many were in flight.
    """

    def __init__(self, plan: Plan, model: str, recorded: list[Ask] | None = None, worker: int = 0, workers: int = 1) -> None:
        self.plan = plan
        self.model = model
        self.path = PATHS[plan.route]
        self.worker = worker
        self.workers = workers
        self.recorded = recorded
        self.began_s = time.monotonic()
        self.idle_since_s = self.began_s
        self.in_flight = 0
        self.closing = False
        self.gone_since_s: float | None = None
        self.unsent = 0
        self._users = 0
        self._number = 0
        folder = Path(plan.out) / TRANSCRIPTS
        folder.mkdir(parents=True, exist_ok=True)
        again = len(list(folder.glob(f"{worker}-{os.getpid()}-*.jsonl")))
        self._file = (folder / f"{worker}-{os.getpid()}-{again}.jsonl").open("xb", buffering=0)

    def next_user(self) -> int:
        """The number of one more user."""
        self._users += 1
        return self.worker * USERS_MAX + self._users - 1

    def place_of(self, user: int) -> int:
        """The place of a user among those of all processes."""
        return user % USERS_MAX * self.workers + self.worker

    def begin(self, user: str, ask: Ask) -> Hearing:
        """Notes that a request is sent."""
        request, text = ask.request, ask.text
        if text is not None:
            request = msgspec.structs.replace(request, prompt=tuple(text.encode()))
        elif self.plan.prompts == "text":
            request, text = spelled(request)
        hearing = Hearing(self._number, user, ask, request, text, self.plan.route == "chat")
        self._number += 1
        self.in_flight += 1
        self._file.write(format_line(Begun(number=hearing.number, user=user, request=request, sent_s=hearing.sent_s)))
        return hearing

    def end(self, hearing: Hearing) -> None:
        """Notes all that was heard of one."""
        self._file.write(format_line(Heard(exchange=hearing.exchange())))
        self.in_flight -= 1
        self.idle_since_s = time.monotonic()
        if hearing.status or hearing.outcome == "cancelled":
            self.gone_since_s = None
        elif self.gone_since_s is None:
            self.gone_since_s = self.idle_since_s

    @property
    def idle_s(self) -> float:
        """For so long nothing has been in flight."""
        return 0.0 if self.in_flight else time.monotonic() - self.idle_since_s

    @property
    def gone_s(self) -> float:
        """For so long there has been no endpoint."""
        return 0.0 if self.gone_since_s is None else time.monotonic() - self.gone_since_s

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()
