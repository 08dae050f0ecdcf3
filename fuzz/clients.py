"""Clients: who hands requests in and hears the answers, and the trio tasks that play them.

A client acts only while it holds the baton (`fuzz.conductor`). What the target raises at it is an event like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import trio

from targets.protocol import Crashed, Emitted, Event, Reason, Request, Target, place

RAISED = (Exception, SystemExit)
"""What a target may raise without ending more than its replay."""
STREAM_EVENTS_MAX = 16
"""As many events a client's stream holds before the client must hear them."""


_OURS = str(Path(__file__).parent)


class Actor:
    """A trio task that plays one client after another, a replay each: starting tasks is dearer than keeping them."""

    def __init__(self) -> None:
        self._wake, self._woken = trio.open_memory_channel[Callable[[], None]](1)
        self._back, self._returned = trio.open_memory_channel[None](1)

    async def live(self) -> None:
        """Does what it is woken for, and hands the baton back; ends with the trio loop."""
        async for errand in self._woken:
            errand()
            self._back.send_nowait(None)

    async def take_baton(self, errand: Callable[[], None]) -> None:
        """Has this task run an errand, and waits until the baton comes back."""
        self._wake.send_nowait(errand)
        await self._returned.receive()


_TROUPE: trio.lowlevel.RunVar[list[Actor]] = trio.lowlevel.RunVar("slotfuzz troupe")


def troupe(size: int) -> list[Actor]:
    """At least `size` actors of the current trio loop, always in the same order."""
    try:
        actors = _TROUPE.get()
    except LookupError:
        actors = []
        _TROUPE.set(actors)
    while len(actors) < size:
        actors.append(Actor())
        trio.lowlevel.spawn_system_task(actors[-1].live)
    return actors


class Client:
    """One client: it hands in its request, hears its stream, and gives up when told to. An actor plays it.

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

    @property
    def live(self) -> bool:
        """Whether it has asked and still awaits an end."""
        return self.submitted and not self.ended

    def submit(self) -> None:
        """Hands its request in; what the target raises is an event like any other."""
        self.submitted = True
        if self.request.deadline_s is not None:
            self.deadline = trio.current_time() + self.request.deadline_s
        try:
            self.reply = self.target.submit(self.submission, self.request)
        except RAISED as error:  # whatever the target raises is a finding
            self.reply = [crashed("submit", error, (self.submission,))]

    def give_up(self, reason: Reason) -> None:
        """Cancels its request."""
        try:
            self.reply = self.target.cancel(self.submission, reason)
        except RAISED as error:  # whatever the target raises is a finding
            self.reply = [crashed("cancel", error, (self.submission,))]

    def hear(self) -> None:
        """Takes its stream in, as far as it has come."""
        self.heard += sum(isinstance(event, Emitted) for event in self.unheard)
        self.unheard.clear()


def crashed(doing: str, error: BaseException, submissions: tuple[int, ...]) -> Crashed:
    """The event for what a target raised while it did something for these submissions."""
    return Crashed(doing, sentence(error), submissions, at=place(error, _OURS))


def sentence(error: BaseException) -> str:
    """An exception as one line, without memory addresses, which differ from replay to replay, and line breaks."""
    words = " ".join(str(error).split())
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", f"{type(error).__name__}: {words}")[:500]
