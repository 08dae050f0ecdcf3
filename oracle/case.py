"""Case: one schedule with its trace, and all that a check may know beside them."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from oracle.finding import Report
from oracle.reference import Reference
from targets.protocol import (
    Admitted,
    Control,
    Crashed,
    Emitted,
    Request,
    Schedule,
    Setting,
    Stalled,
    Trace,
    emitted_by_submission,
    submissions,
)


@dataclass(frozen=True)
class Anew:
    """Asks for a replay where nothing has run before: on another network, in another process."""

    schedule: Schedule


@dataclass(frozen=True)
class Used:
    """Asks for a replay, on a fresh target as ever, where the last `Anew` was played."""

    schedule: Schedule


@dataclass(frozen=True)
class Accounted:
    """Asks for a replay whose trace has the target's accounts of its storage."""

    schedule: Schedule


Ask = Schedule | Accounted | Anew | Used
Check = Callable[["Case"], Generator[Ask, Trace, Report]]
"""A question: yields the schedules it wants replayed on fresh targets, receives their traces, returns its report."""


class Alphabet:
    """The token ids that a bijection may move, and their places among themselves.

    Attributes:
        vocabulary: Number of token ids.
        ids: Every id without a meaning of its own, in order.
    """

    def __init__(self, vocabulary: int, special_ids: tuple[int, ...]) -> None:
        self.vocabulary = vocabulary
        special = set(special_ids)
        self.ids = tuple(token for token in range(vocabulary) if token not in special)
        self._place = {token: place for place, token in enumerate(self.ids)}

    def image(self, token: int, shift: int) -> int:
        """Where a token goes when all move round by `shift`; special ids and those past the vocabulary stay."""
        place = self._place.get(token)
        return token if place is None else self.ids[(place + shift) % len(self.ids)]

    def has_all(self, prompt: tuple[int, ...]) -> bool:
        """Whether a prompt is one that a network can be asked: not empty, and all in the vocabulary."""
        return bool(prompt) and max(prompt) < self.vocabulary

    def complaint(self, event: Emitted) -> str | None:
        """What makes an emission one that no network over this vocabulary can have given, or None."""
        if not 0 <= event.token < self.vocabulary:
            return f"token {event.token}, which is outside 0..{self.vocabulary - 1}"
        if event.logits is not None and (event.logits.dim() != 1 or len(event.logits) != self.vocabulary):
            return f"logits of shape {list(event.logits.shape)}, not [{self.vocabulary}]"
        return None


@dataclass(frozen=True)
class Case:
    """What is judged.

    Attributes:
        references: The reference for a precision, by settings. None where the target has no network to ask.
        alphabet: The token ids that a bijection may move.
        context_tokens_max: As the target has it under the schedule's settings.
        thorough: Whether to spend replays on naming the source of a leak, and on every victim in turn.
    """

    schedule: Schedule
    trace: Trace
    control: Control
    references: Callable[[Mapping[str, Setting]], Reference]
    alphabet: Alphabet
    context_tokens_max: int
    thorough: bool = False

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """By submission."""
        return submissions(self.schedule)

    @cached_property
    def died(self) -> bool:
        """Whether the target's process ended with this replay: another one would cost a process as well."""
        return any(
            (isinstance(event, Crashed) and event.fatal) or (isinstance(event, Stalled) and bool(event.doing))
            for event in self.trace[-1:]
        )

    @cached_property
    def emitted(self) -> dict[int, list[Emitted]]:
        """By submission, in order; those without a token are absent."""
        return emitted_by_submission(self.trace)

    @cached_property
    def cached(self) -> dict[int, int]:
        """By submission, the most tokens whose cells were there when it was admitted; those without any are absent."""
        found: dict[int, int] = {}
        for event in self.trace:
            if isinstance(event, Admitted) and event.cached:
                found[event.submission] = max(event.cached, found.get(event.submission, 0))
        return found

    @cached_property
    def sound(self) -> dict[int, list[Emitted]]:
        """The submissions a reference can be asked about: prompt and tokens in the vocabulary, logits of its width."""
        return {
            submission: events
            for submission, events in self.emitted.items()
            if 0 <= submission < len(self.requests) and all(self.alphabet.complaint(event) is None for event in events)
        }

    @cached_property
    def answers(self) -> dict[int, tuple[int, ...]]:
        """The tokens streamed, by submission."""
        return {submission: tuple(event.token for event in events) for submission, events in self.emitted.items()}

    @cached_property
    def logits(self) -> torch.Tensor | None:
        """The logits [N, V] of all sound emissions, in their order; None where the target does not show them all."""
        rows = [event.logits for events in self.sound.values() for event in events]
        shown = [row for row in rows if row is not None]
        return torch.stack(shown) if shown and len(shown) == len(rows) else None

    @cached_property
    def told(self) -> dict[int, tuple[float | None, ...]] | None:
        """The log-probability that the target tells of each token, by submission; None where it is not one that does."""
        return told(self.emitted) if self.control.told else None

    @cached_property
    def random(self) -> random.Random:
        """The case's own chance: equal for equal schedules."""
        return random.Random(zlib.crc32(self.schedule.key()))

    @cached_property
    def reference(self) -> Reference:
        """In the schedule's own precision."""
        return self.references(self.schedule.settings)


def told(emitted: Mapping[int, Sequence[Emitted]]) -> dict[int, tuple[float | None, ...]]:
    """The log-probability told of each token itself, by submission; None for a token without."""
    return {
        submission: tuple(next((value for token, value in event.logprobs if token == event.token), None) for event in events)
        for submission, events in emitted.items()
    }


def alike(ours: Iterable[int], theirs: Iterable[int]) -> int:
    """How many tokens two begin with alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def lone(request: Request) -> Request:
    """A request as one that is alone: without what only means something beside others, or in time."""
    return msgspec.structs.replace(request, deadline_s=None, client_id=None, sample_of=None)
