"""Targets that take their process with them, hang, or abuse it: each once a condition is met that takes a search to find.

As a user's own they are reached by `--target tests.fuzz.dying:NAME`. Never play one in the process of the tests.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from targets.protocol import Audit, Emitted, Event, Finished, Knob, Reason, Request, Setting, check_settings
from tests.fuzz.scripted import Honest, Scripted


class Aborting(Honest):
    """Aborts in the step in which a third request is live, after a word on stderr."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        if len(self.live) > 2:
            print(f"terminate called: no row {len(self.live)} at {hex(id(self))}", file=sys.stderr)
            os.abort()
        return super().step(rows)


class Segfaulting(Honest):
    """Reads from address 0 when a request asks for more than two tokens."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        if any(request.max_new_tokens > 2 for request in self.live.values()):
            ctypes.string_at(0)
        return super().step(rows)


class Exiting(Honest):
    """Leaves with status 3 in a cancel."""

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        os._exit(3)


class Sleeping(Honest):
    """Never comes back from a submit beside a live request."""

    def submit(self, submission: int, request: Request) -> list[Event]:
        if self.live:
            time.sleep(1e6)
        return super().submit(submission, request)


class Eating(Honest):
    """Wants more memory than there is when two requests are live."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        hoard: list[bytearray] = []
        while len(self.live) > 1:
            hoard.append(bytearray(2**26))
        return super().step(rows)


class Spinning(Honest):
    """Holds the GIL for ever when two requests are live; says so by a file that the environment names."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        if len(self.live) > 1:
            if "SPINS" in os.environ:
                Path(os.environ["SPINS"]).touch()
            re.match(r"(a+)+$", "a" * 64 + "b")
        return super().step(rows)


class Leaving(Honest):
    """Raises SystemExit."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        raise SystemExit("enough")


class Rebelling(Honest):
    """Raises what a conductor lets through."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        raise KeyboardInterrupt


class AbortsInAudit(Honest):
    """Aborts when it is asked for its account."""

    def audit(self) -> Audit | None:
        os.abort()


class AbortsInClose(Honest):
    """Aborts at the end."""

    def close(self) -> None:
        os.abort()


class Hungry(Honest):
    """Reads its stdin to the end in every step, and goes on."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        sys.stdin.read()
        return super().step(rows)


class Loud(Honest):
    """Prints a megabyte in every step, to stdout and stderr, past Python too."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        print("x" * 2**19)
        sys.stderr.write("y" * 2**18)
        os.write(1, b"\x00\xff" * 2**17)
        return super().step(rows)


class Ranting(Honest):
    """Prints for ever."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        while True:
            print("still here")


class Begetting(Honest):
    """Starts a process that outlives it and holds on to all it can, writes down its id, and aborts."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        if (heir := os.fork()) == 0:
            time.sleep(1e6)
        with open(os.environ["HEIR"], "w") as file:
            file.write(str(heir))
        os.abort()


class Foreign(Honest):
    """Answers with other libraries' integers, and a half-precision row."""

    def advance(self, submission: int) -> list[Event]:
        first, *others = super().advance(submission)
        assert isinstance(first, Emitted)
        assert first.logits is not None
        return [Emitted(submission, torch.tensor(first.token), first.logits.bfloat16()), *others]  # type: ignore[arg-type]


class Nonsense(Honest):
    """Its second token is a word."""

    def advance(self, submission: int) -> list[Event]:
        first, *others = super().advance(submission)
        word: Any = "seven"
        return [Emitted(submission, word), *others] if len(self.answers.get(submission, ())) == 2 else [first, *others]


class Untold(Honest):
    """Its second token is nothing that has a number."""

    def advance(self, submission: int) -> list[Event]:
        first, *others = super().advance(submission)
        thing: Any = object()
        return [Emitted(submission, thing), *others] if len(self.answers.get(submission, ())) == 2 else [first, *others]


class Unreasonable(Honest):
    """Ends for a reason that there is not."""

    def end(self, submission: int, reason: Reason) -> list[Event]:
        super().end(submission, reason)
        whim: Any = "whim"
        return [Finished(submission, whim, tuple(self.answers[submission]))]


WAYS: dict[str, type[Honest]] = {
    kind.__name__.lower(): kind
    for kind in (
        Honest,
        Aborting,
        Segfaulting,
        Exiting,
        Sleeping,
        Spinning,
        Leaving,
        Rebelling,
        AbortsInAudit,
        AbortsInClose,
        Hungry,
        Loud,
        Ranting,
        Begetting,
        Foreign,
        Nonsense,
        Untold,
        Unreasonable,
    )
}


class Zoo(Scripted):
    """All of them, by the knob `way`; `unopenable` aborts in `open`."""

    knobs: tuple[Knob, ...] = (Knob(name="way", default="honest", values=(*WAYS, "unopenable"), drawn=False, doc="to die"),)

    def __init__(self) -> None:
        super().__init__(Honest, audit=True)

    def open(self, settings: Mapping[str, Setting]) -> Honest:
        check_settings(self.knobs, settings)
        if settings.get("way") == "unopenable":
            os.abort()
        self.target = WAYS[str(settings.get("way", "honest"))]
        return super().open(settings)


def unbuildable() -> Scripted:
    """Takes the process with it before there is a factory."""
    os.abort()


aborting = partial(Scripted, Aborting)
sleeping = partial(Scripted, Sleeping)
eating = partial(Scripted, Eating)
spinning = partial(Scripted, Spinning)
