"""Case: one schedule with its trace, and all that a check may know beside them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property

from oracle.finding import Report
from oracle.reference import Reference
from targets.protocol import (
    Control,
    Emitted,
    Request,
    Schedule,
    Setting,
    Trace,
    emitted_by_submission,
    submissions,
)

Check = Callable[["Case"], Generator[Schedule, Trace, Report]]
"""A question: yields the schedules it wants replayed on fresh targets, receives their traces, returns its report."""


@dataclass(frozen=True)
class Case:
    """What is judged.

    Attributes:
        references: The reference for a precision, by settings. None where the target has no network to ask.
        ordinary_ids: Every token id that a bijection may move.
        context_tokens_max: As the target has it under the schedule's settings.
        thorough: Whether to spend replays on naming the source of a leak, and on every victim in turn.
    """

    schedule: Schedule
    trace: Trace
    control: Control
    references: Callable[[Mapping[str, Setting]], Reference]
    ordinary_ids: tuple[int, ...]
    context_tokens_max: int
    thorough: bool = False

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """By submission."""
        return submissions(self.schedule)

    @cached_property
    def emitted(self) -> dict[int, list[Emitted]]:
        """By submission, in order; those without a token are absent."""
        return emitted_by_submission(self.trace)

    @cached_property
    def answers(self) -> dict[int, tuple[int, ...]]:
        """The tokens streamed, by submission."""
        return {submission: tuple(event.token for event in events) for submission, events in self.emitted.items()}

    @cached_property
    def reference(self) -> Reference:
        """In the schedule's own precision."""
        return self.references(self.schedule.settings)
