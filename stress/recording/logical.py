"""Logical time: a schedule against a live endpoint, the order of its ops kept and the clock left out.

`Wait(submission, tokens)` holds the next op until that stream has given so many tokens or has ended. Steps are the target's
own business here: `timed` puts in their place what had been heard by then, as a replay tells it. The order in which things
are asked is promised; which of them meet in a step is not, so what went wrong may take several tries to show.
"""

from __future__ import annotations

import trio

from fuzz.edits import with_ops
from stress.judging.asking import Endpoint
from stress.transcript import Exchange
from targets.protocol import Asked, Cancel, Emitted, Op, Schedule, Step, Submit, Trace, Wait, submissions

PATIENCE_S = 60.0
"""A stream that does not give what is waited for is waited for so long."""


def timed(schedule: Schedule, trace: Trace) -> Schedule:
    """The schedule with a wait for the last token that was heard in the place of steps."""
    heard: dict[int, int] = {}
    latest: int | None = None
    ops: list[Op] = []
    for event in trace:
        if isinstance(event, Emitted):
            heard[event.submission] = heard.get(event.submission, 0) + 1
            latest = event.submission
        elif isinstance(event, Asked) and event.op < len(schedule.ops):
            op = schedule.ops[event.op]
            if isinstance(op, Step):
                continue
            if latest is not None and not isinstance(op, Wait):
                ops.append(Wait(latest, heard[latest]))
                latest = None
            ops.append(op)
    return with_ops(schedule, ops)


async def play(schedule: Schedule, endpoint: Endpoint) -> list[Exchange]:
    """Asks an endpoint what a schedule says; what each request heard, by submission."""
    streams = [_Stream() for _ in submissions(schedule)]
    requests = iter(enumerate(submissions(schedule)))

    async def ask(submission: int, op: Submit) -> None:
        stream = streams[submission]
        stream.heard = await endpoint.ask(op.request, submission, "logical", stream.hear, stream.scope, stream.sent.set)
        stream.end()

    async with trio.open_nursery() as nursery:
        for op in schedule.ops:
            if isinstance(op, Submit):
                submission, _ = next(requests)
                nursery.start_soon(ask, submission, op)
                await streams[submission].sent.wait()  # before the next one is
            elif isinstance(op, Cancel):
                streams[op.submission].scope.cancel()
            elif isinstance(op, Wait):
                with trio.move_on_after(PATIENCE_S):
                    await streams[op.submission].until(op.tokens)
    return [stream.heard for stream in streams if stream.heard is not None]


class _Stream:
    """One request under way.

    Attributes:
        sent: The whole of it is on its way, or never will be.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.tokens = 0
        self.over = False
        self.sent = trio.Event()
        self.heard: Exchange | None = None
        self._news = trio.Event()

    def hear(self, tokens: int) -> None:
        """There are so many tokens now."""
        self.tokens = tokens
        self._tell()

    def end(self) -> None:
        """There will be no more."""
        self.over = True
        self.sent.set()
        self._tell()

    async def until(self, tokens: int) -> None:
        """Waits until there are so many, or there will be no more."""
        while self.tokens < tokens and not self.over:
            await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()
