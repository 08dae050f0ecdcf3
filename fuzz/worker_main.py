"""Worker's main: the process in which a target is played, started by `fuzz.worker`, never by hand.

    python -m fuzz.worker_main FD_REQUESTS FD_ANSWERS FD_LIFELINE

It builds one factory and plays on it what it is sent, with the conductor that plays in process. Before it lets anybody's
code run it says what has happened so far and what it is about to call: whatever that code does to the process, the trace
up to there has left it. It ends with its parent, even while it hangs in C.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from fuzz.clients import RAISED, sentence
from fuzz.conductor import Conductor, play, run_trio
from fuzz.lifeline import die_with_parent
from fuzz.wire import (
    Build,
    Calling,
    FromWorker,
    Misused,
    Play,
    Ready,
    Said,
    ToWorker,
    decode_to_worker,
    encode,
    take_frame,
)
from targets.protocol import Audit, BadInput, Crashed, Event, Factory, Reason, Request, Target, Trace
from targets.registry import build

Result = TypeVar("Result")

WHERE_SIGNAL = signal.SIGUSR1
"""Makes a worker write to its stderr where it is, also from within C code."""
_READ_BYTES = 2**16


def main() -> None:
    """Serves one parent until it hangs up."""
    requests, answers, lifeline = map(int, sys.argv[1:])
    die_with_parent(lifeline)
    for own in (requests, answers, lifeline):
        os.set_inheritable(own, False)  # what the target starts must not hold them open
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    _leave_no_core()
    faulthandler.enable(all_threads=False)
    faulthandler.register(WHERE_SIGNAL, all_threads=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # last words that stay in a buffer die with it
    channel = _Channel(requests, answers)
    asked = channel.hear()
    if not isinstance(asked, Build):
        return
    sys.path[:] = asked.path or sys.path
    torch.set_num_threads(asked.threads)
    try:
        factory = build(asked.spec)
    except BadInput as error:
        channel.say(_misused(error))
        return
    gc.collect()
    gc.freeze()  # what is loaded by now stays, and the collector need not look at it
    channel.say(Ready())
    run_trio(_serve, channel, factory)


async def _serve(channel: _Channel, factory: Factory) -> None:
    """Plays one schedule after another, all in one trio loop, as a search does."""
    while (asked := channel.hear()) is not None:
        assert isinstance(asked, Play), "a factory is built once"
        watched = _Watched(channel)
        watched.tell((), Calling("open", (), ()))
        try:
            trace = await play(factory, asked.schedule, asked.audits, watched.watch)
        except BadInput as error:
            channel.say(_misused(error))
        else:
            watched.end(trace)


class _Watched:
    """A target between a conductor and the one it plays on: before every call, it says what has happened so far."""

    def __init__(self, channel: _Channel) -> None:
        self.channel = channel
        self.conductor: Conductor | None = None
        self.sent = 0
        self.garbled = False
        self.escaped = False

    def watch(self, conductor: Conductor) -> Target:
        """Takes the place of the conductor's target."""
        self.conductor, self.target = conductor, conductor.target
        return self

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Says so, and passes it on."""
        return self.call("submit", lambda: self.target.submit(submission, request), submission)

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Says so, and passes it on."""
        return self.call("cancel", lambda: self.target.cancel(submission, reason), submission)

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Says so, and passes it on."""
        return self.call("step", lambda: self.target.step(rows))

    def audit(self) -> Audit | None:
        """Says so, and passes it on."""
        return self.call("audit", self.target.audit)

    def close(self) -> None:
        """Says so, and passes it on; after what ends this process, that is what happened."""
        if self.escaped:
            self.target.close()
        else:
            self.call("close", self.target.close)

    def call(self, doing: str, errand: Callable[[], Result], submission: int | None = None) -> Result:
        """Says which call begins, after everything that happened before it, and makes it.

        Raises:
            TypeError: if that can't be said: it is no data. The conductor takes this for a crash, and ends the replay.
        """
        assert self.conductor is not None
        live = self.live()
        self.tell(self.conductor.trace, Calling(doing, live if submission is None else (submission,), live))
        if self.garbled and doing != "close":
            raise TypeError("the target's events are no data")
        try:
            return errand()
        except RAISED:
            raise
        except BaseException:
            self.escaped = True
            raise

    def tell(self, trace: Sequence[Event], calling: Calling | None) -> None:
        """Says what is new in a trace. At an event that is none, the replay has ended as far as the parent is concerned."""
        if self.garbled:
            return
        events = list(trace[self.sent :])
        self.sent += len(events)
        try:
            frame = encode(Said(events, calling))
        except Exception as error:  # what a target puts into an event may raise anything when it is looked at
            self.garbled = True
            frame = encode(Said([*_sound(events), Crashed("answer", sentence(error), self.live())]))
        self.channel.write(frame)

    def end(self, trace: Trace) -> None:
        """Says the rest of a trace, and that this was all."""
        self.tell(trace, None)
        self.conductor = None  # or the two would hold each other, and the target, until the collector comes

    def live(self) -> tuple[int, ...]:
        """Who has asked and awaits an end."""
        return tuple(client.submission for client in self.conductor.clients if client.live) if self.conductor else ()


def _sound(events: list[Event]) -> list[Event]:
    """The events before the first that can't be said."""
    for index, event in enumerate(events):
        try:
            encode(Said([event]))
        except Exception:  # as above
            return events[:index]
    return events


class _Channel:
    """Both ends of the talk with the parent."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests = requests
        self.answers = answers
        self.buffer = bytearray()

    def hear(self) -> ToWorker | None:
        """The next thing the parent wants; None once it has hung up."""
        while (frame := take_frame(self.buffer)) is None:
            data = os.read(self.requests, _READ_BYTES)
            if not data:
                return None
            self.buffer += data
        return decode_to_worker(frame)

    def say(self, message: FromWorker) -> None:
        """Says a message of our own."""
        self.write(encode(message))

    def write(self, frame: bytes) -> None:
        """Hands a frame to the kernel, where it is safe from whatever this process does next."""
        left = memoryview(frame)
        while left:
            left = left[os.write(self.answers, left) :]


def _misused(error: BadInput) -> Misused:
    return Misused(error.name, error.rule, str(error.got), error.where)


def _leave_no_core() -> None:
    """A crash is over at once: while the memory of a large model is written to disk, it would look like a hang.

    One byte, because a kernel that hands cores to a program takes a limit of none for no limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if most == 0 else 1, most))


if __name__ == "__main__":
    main()
