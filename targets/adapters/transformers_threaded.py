"""transformers' continuous batching as people run it: its manager's own loop, in a thread, through the public interface.

`start`, `add_request`, `cancel_request`, `get_result`, `stop`, and nothing else. The loop decides by itself when it takes in
what was asked, so a schedule is played in logical time: a step waits for the next outputs. Knobs and promises are those of
`transformers_cb`, which makes the loop's calls itself and so replays to the bit, but never runs the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from targets.adapters import transformers_cb as stepped
from targets.adapters.rows import Rows
from targets.protocol import (
    Audit,
    Control,
    Counted,
    Event,
    Reason,
    Refused,
    Request,
    Setting,
    check_settings,
    with_defaults,
)

STEP_S = 2.5
"""So long a step waits for the next output."""
STOP_S = 30.0
"""So long the loop may take to end."""


class Loop:
    """One manager that runs; fulfils `targets.protocol.Target`."""

    def __init__(self, network: Any, settings: Mapping[str, Setting], vocabulary: int) -> None:
        self.settings = with_defaults(stepped.KNOBS, settings)
        self.vocabulary = vocabulary
        self.manager = stepped.manager(network, self.settings)
        self.manager.start()
        self.rows = Rows()
        self.names: dict[str, int] = {}
        self.answering: dict[int, list[int]] = {}
        self.fresh: list[int] = []
        self.counts = {"forked": 0}

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Hands a request in, unless an answer of one that was just handed in will do."""
        if self.settings["guard"]:
            needed = len(request.prompt) + request.max_new_tokens
            if not request.prompt or max(request.prompt) >= self.vocabulary or needed > stepped.room(self.settings):
                return [Refused(submission, "empty, past the vocabulary, or more than the cache holds")]
        self.rows.begin(submission, request)
        for first in self.fresh:
            group = self.answering[first]
            room = len(group) < int(self.settings["num_return_sequences"])
            if room and self.rows.alike(first, request):
                self.names[f"#{first}__child#{len(group) - 1}"] = submission
                group.append(submission)
                return []
        self.answering[submission] = [submission]
        self.fresh.append(submission)
        self.names[f"#{submission}"] = submission
        self.manager.add_request(
            list(request.prompt),
            request_id=f"#{submission}",
            max_new_tokens=request.max_new_tokens,
            streaming=True,
            eos_token_id=list(request.stop) or -1,
            **stepped.each(self.settings),
        )
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Passes a cancel on; of several answers to one prompt, only when all of them have been left."""
        if submission not in self.rows.live:
            return []
        events = self.rows.end(submission, reason)
        group = next(group for group in self.answering.values() if submission in group)
        if not any(other in self.rows.live for other in group):
            self.fresh = [first for first in self.fresh if first not in group]
            for name, owner in self.names.items():
                if owner in group:
                    self.manager.cancel_request(name)
        return events

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Waits for the next output, and takes what there is."""
        if not self.rows.live:
            return []
        self.fresh.clear()
        events: list[Event] = []
        output = self.manager.get_result(timeout=STEP_S)
        while output is not None:
            events += self._heard(output)
            output = self.manager.get_result(timeout=0.0 if events else STEP_S)
        if not self.manager.is_running():
            raise RuntimeError("the manager's loop has ended")
        return [*events, Counted(dict(self.counts))]

    def audit(self) -> Audit | None:
        """It runs while one would look."""
        return None

    def close(self) -> None:
        """Ends the loop."""
        self.manager.stop(block=True, timeout=STOP_S, hard_stop=True)
        self.manager.destroy()

    def _heard(self, output: Any) -> list[Event]:
        """What one output says."""
        submission = self.names.get(output.request_id)
        if submission not in self.rows.live:
            return []  # one answer more than anybody asked for, or one whose client has left
        if output.error is not None:
            raise RuntimeError(f"request {output.request_id} failed: {output.error}")
        events = self.rows.admit(submission)
        self.counts["forked"] += "__child#" in output.request_id and not self.rows.answer(submission)
        tokens, likely = output.generated_tokens, output.logprobs
        shown = not stepped.sampled(self.settings) and len(likely) == len(tokens)
        for index in range(len(self.rows.answer(submission)), len(tokens)):
            told = ((tokens[index], likely[index]),) if shown else ()
            events.append(self.rows.emit(submission, tokens[index], told))
        if output.is_finished():
            stopped = bool(tokens) and tokens[-1] in self.rows.live[submission].stop
            events += self.rows.end(submission, Reason.STOP if stopped else Reason.LENGTH)
        return events


class ThreadedFactory(stepped.TransformersFactory):
    """Starts managers on one network; fulfils `targets.protocol.Factory`."""

    name = "transformers-threaded"
    knobs = tuple(knob for knob in stepped.KNOBS if knob.name != "ids")
    control = Control(stepped=False, told=True, shares=True)

    def open(self, settings: Mapping[str, Setting]) -> Loop:  # type: ignore[override]
        """A fresh manager, started, on a network that all targets of this factory share."""
        check_settings(self.knobs, settings)
        return Loop(self.shared(settings), settings, self.vocabulary)


def factory(model: str) -> ThreadedFactory:
    """As `transformers_cb.factory`."""
    return ThreadedFactory(stepped.model_of(model))
