"""Watching: targets that are stepped under the probe, for a replay that somebody looks at. What they do is unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzz.probe import Probe
from fuzz.watch import Watch
from targets.protocol import Event, Factory, Inspectable, Reason, Request, Setting, Target


class Watching:
    """A factory like another one, whose targets are watched; as much of a `Factory` as a replay asks for."""

    def __init__(self, factory: Factory, watch: Watch) -> None:
        self._factory = factory
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factory, name)

    def open(self, settings: Mapping[str, Setting]) -> _Watched:
        """A fresh target under the watch."""
        return _Watched(self._factory.open(settings), self._factory.control.inspect, self._watch)


class _Watched:
    """A target that is stepped under the probe; all else it does is its own."""

    def __init__(self, target: Target, inspects: bool, watch: Watch) -> None:
        self.target = target
        self.inspects = inspects and isinstance(target, Inspectable)
        self.watch = watch
        self.audit = target.audit
        self.close = target.close

    def submit(self, submission: int, request: Request) -> list[Event]:
        """As the target's."""
        events = self.target.submit(submission, request)
        self.watch.told(events)
        return events

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """As the target's."""
        events = self.target.cancel(submission, reason)
        self.watch.told(events)
        return events

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """As the target's; looked at if there still is something to find."""
        if self.watch.over:
            return self.target.step(rows)
        probe, step = Probe(), self.watch.step + 1
        with probe:
            events = self.target.step(rows)
        try:
            inspection = self.target.inspect() if self.inspects and isinstance(self.target, Inspectable) else None
            self.watch.stepped(events, probe.take(), inspection)
        except Exception as error:  # looking must not become part of what is looked at
            self.watch.why = f"looking at step {step} raised {type(error).__name__}: {error}"
        return events
