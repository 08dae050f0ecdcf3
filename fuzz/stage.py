"""Stages: where schedules are played, each on a fresh target.

A stage may carry something over from one replay to the next that a target should not see (a network's own state, a cache
in a module). `renewed` gives a stage on which nothing has run yet, so that a check can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fuzz.conductor import play
from targets.protocol import Factory, Schedule, Trace


class Stage(Protocol):
    """Plays schedules.

    Attributes:
        in_process: Whether the targets are in this process and nothing outlives them, so that they can be looked into.
    """

    in_process: bool

    async def play(self, schedule: Schedule, audits: bool = True) -> Trace:
        """One trace on a fresh target.

        Args:
            audits: Whether the trace has the target's account of its storage after every step, if it can give one.

        Raises:
            BadInput: if the schedule's settings are not the target's.
        """

    def renewed(self) -> Stage:
        """Another stage of the same kind on which nothing has run."""

    def last_words(self) -> tuple[str, ...]:
        """What is known of how the last replay ended if the target took its process with it: lines for people, no data."""

    def close(self) -> None:
        """Gives back what it holds."""


class InProcess:
    """Plays in this process, on the targets of one factory.

    Attributes:
        rebuild: Builds the factory anew, its network included; without it, a fresh target is as fresh as it gets.
    """

    in_process = True

    def __init__(self, factory: Factory, rebuild: Callable[[], Factory] | None = None) -> None:
        self.factory = factory
        self.rebuild = rebuild

    async def play(self, schedule: Schedule, audits: bool = True) -> Trace:
        """As `Stage.play`."""
        return await play(self.factory, schedule, audits)

    def renewed(self) -> InProcess:
        """A stage with a factory of its own."""
        return InProcess(self.factory if self.rebuild is None else self.rebuild(), self.rebuild)

    def last_words(self) -> tuple[str, ...]:
        """Who could tell?"""
        return ()

    def close(self) -> None:
        """Nothing is held."""


class Renewing:
    """Plays every schedule on a stage of its own: slow, and right where a target remembers what it should not."""

    in_process = False

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._last_words: tuple[str, ...] = ()

    async def play(self, schedule: Schedule, audits: bool = True) -> Trace:
        """As `Stage.play`."""
        stage = self.stage.renewed()
        try:
            return await stage.play(schedule, audits)
        finally:
            self._last_words = stage.last_words()
            stage.close()

    def renewed(self) -> Stage:
        """A plain stage: what is asked for twice on it is to be played on one."""
        return self.stage.renewed()

    def last_words(self) -> tuple[str, ...]:
        """Of the last replay's own stage."""
        return self._last_words

    def close(self) -> None:
        """Gives back what the stage it was made from holds."""
        self.stage.close()
