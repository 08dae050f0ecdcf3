"""Targets of a few lines whose every move is known: they say the number after the last one, round the vocabulary.

As a user's own they are reached by `--target tests.fuzz.scripted:NAME`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import torch
from torch import nn

from targets.protocol import (
    Admitted,
    Audit,
    Control,
    Emitted,
    Event,
    Finished,
    Freed,
    Knob,
    Reason,
    Refused,
    Request,
    Setting,
)

VOCABULARY = 32
ROOMS = 16
"""`Full` has room for so many."""


class Counting(nn.Module):
    """Logits 1 at the successor of each token, 0 elsewhere: float64 [B, n, V]."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        shown: torch.Tensor = nn.functional.one_hot((input_ids + 1) % VOCABULARY, VOCABULARY) * self.scale
        return shown


class Honest:
    """A target that does what it is asked: everybody runs at once, one token a step."""

    def __init__(self, opened: int) -> None:
        self.opened = opened
        self.closed = False
        self.live: dict[int, Request] = {}
        self.answers: dict[int, list[int]] = {}

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Starts it."""
        if not request.prompt:
            return [Refused(submission, "empty prompt")]
        if request.max_new_tokens == 0:
            return [Finished(submission, Reason.LENGTH, ())]
        self.live[submission], self.answers[submission] = request, []
        return [Admitted(submission, submission)]

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Ends it."""
        return self.end(submission, reason) if submission in self.live else []

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """One token each."""
        events: list[Event] = []
        for submission in list(self.live):
            if rows is None or submission in rows:
                events += self.advance(submission)
        return events

    def advance(self, submission: int) -> list[Event]:
        """The next number."""
        request, answer = self.live[submission], self.answers[submission]
        logits = self.logits((answer or request.prompt)[-1])
        forced = request.forced[len(answer)] if len(answer) < len(request.forced) else None
        answer.append(int(logits.argmax()) if forced is None else forced)
        events: list[Event] = [Emitted(submission, answer[-1], logits)]
        if answer[-1] in request.stop:
            events += self.end(submission, Reason.STOP)
        elif len(answer) == request.max_new_tokens:
            events += self.end(submission, Reason.LENGTH)
        return events

    def logits(self, last: int) -> torch.Tensor:
        """As the network has them."""
        row: torch.Tensor = Counting()(torch.tensor([[last]]))[0, 0]
        return row

    def end(self, submission: int, reason: Reason) -> list[Event]:
        """Over."""
        del self.live[submission]
        return [Finished(submission, reason, tuple(self.answers[submission])), Freed(submission, submission)]

    def audit(self) -> Audit | None:
        """It keeps no slots."""
        return None

    def close(self) -> None:
        """Remembers that it was asked to."""
        self.closed = True


class Unstable(Honest):
    """Other logits in every target, as a race gives them."""

    def logits(self, last: int) -> torch.Tensor:
        """A little more."""
        return super().logits(last) * (1 + self.opened / 1000)


class Crowded(Honest):
    """Fails when three requests run together."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """One token each, for two at most."""
        if len(self.live) > 2:
            raise IndexError("row 2 is out of range")
        return super().step(rows)


class Interrupting(Crowded):
    """As `Crowded`; and in the three hundredth target the user types Ctrl-C."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Types it in the first step."""
        if self.opened == 300:
            self.opened = 0
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(rows)


class Scripted:
    """Opens targets of one class; fulfils `targets.protocol.Factory`."""

    knobs: tuple[Knob, ...] = (Knob(name="size", default=1, values=(1, 2), low=1, high=8, doc="of nothing"),)
    vocabulary = VOCABULARY
    special_ids: tuple[int, ...] = (0,)

    def __init__(self, target: type[Honest], *, audit: bool = False) -> None:
        self.name = target.__name__
        self.identity = f"counting, {self.name}"
        self.control = Control(rows=True, forced=True, logits=True, audit=audit)
        self.target = target
        self.opened: list[Honest] = []

    def open(self, settings: Mapping[str, Setting]) -> Honest:
        """The next target, which knows its number."""
        self.opened.append(self.target(len(self.opened)))
        return self.opened[-1]

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """What counts."""
        return Counting()

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """Out of reach."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """No limit that a test comes near."""
        return 10_000


def honest() -> Scripted:
    """Nothing is wrong with it; but it looks at the last token only, so that it is mute."""
    return Scripted(Honest)


def crowded() -> Scripted:
    """Fails when three requests run together."""
    return Scripted(Crowded)


def interrupting() -> Scripted:
    """Fails likewise, and is stopped by the user."""
    return Scripted(Interrupting)


class Brittle(Honest):
    """Breaks at every prompt, and has words of its own for hundreds of them: there is always something new to find."""

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Says which prompt it was, by its ends."""
        raise KeyError(" to ".join(_word(request.prompt[end]) for end in (0, -1)) if request.prompt else "nothing")


def _word(number: int) -> str:
    """A number as a letter: what differs in digits only counts as one failure."""
    return chr(ord("a") + number // 2 % 16)


def brittle() -> Scripted:
    """Fails at once, in hundreds of ways."""
    return Scripted(Brittle)


class Full(Honest):
    """Never gets back the room that a request took, and has only so much of it."""

    taken = 0

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Takes room."""
        self.taken += 1
        if self.taken > ROOMS:
            raise OverflowError(f"room {ROOMS}")
        return super().submit(submission, request)


def full() -> Scripted:
    """Fails once it has been used for a while."""
    return Scripted(Full)
