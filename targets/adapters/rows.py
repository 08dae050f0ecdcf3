"""Rows: the live requests of an engine that does not tell of its slots, each with its answer so far and a row of ours."""

from __future__ import annotations

from targets.protocol import Admitted, Emitted, Event, Finished, Freed, Reason, Request


class Rows:
    """What is known of requests from what their clients were told.

    Attributes:
        live: Those that have not ended, by submission.
    """

    def __init__(self) -> None:
        self.live: dict[int, Request] = {}
        self._answers: dict[int, list[int]] = {}
        self._rows: dict[int, int] = {}

    def begin(self, submission: int, request: Request) -> None:
        """A request was handed in."""
        self.live[submission] = request
        self._answers[submission] = []

    def alike(self, submission: int, request: Request) -> bool:
        """Whether a live request asks for what another one does, so that one prompt may serve both."""
        theirs = self.live.get(submission)
        return theirs is not None and (theirs.prompt, theirs.max_new_tokens, theirs.stop) == (
            request.prompt,
            request.max_new_tokens,
            request.stop,
        )

    def forget(self, submission: int) -> None:
        """A request was refused."""
        del self.live[submission]

    def answer(self, submission: int) -> list[int]:
        """Its tokens so far."""
        return self._answers[submission]

    def admit(self, submission: int, cached: int = 0) -> list[Event]:
        """It is known to run: the event, in the first row that is free; none where that was known."""
        if submission in self._rows:
            return []
        taken = set(self._rows.values())
        self._rows[submission] = next(row for row in range(len(taken) + 1) if row not in taken)
        return [Admitted(submission, self._rows[submission], cached)]

    def emit(self, submission: int, token: int, told: tuple[tuple[int, float], ...]) -> Event:
        """Its next token, with log-probabilities as `Emitted` has them."""
        self._answers[submission].append(token)
        return Emitted(submission, token, logprobs=told)

    def end(self, submission: int, reason: Reason) -> list[Event]:
        """It is over; its row is free."""
        self.live.pop(submission, None)
        events: list[Event] = [Finished(submission, reason, tuple(self._answers[submission]))]
        row = self._rows.pop(submission, None)
        return events if row is None else [*events, Freed(submission, row)]
