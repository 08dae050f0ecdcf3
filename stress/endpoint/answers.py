"""Answers: from what a target says of a request to what its client reads, a piece at a time.

A `Choice` is one request's answer in the making: it turns tokens into text, looks for stop strings, and holds back what may
still become one; with a text it tells the log-probabilities of the tokens whose text begins in it. Token ids are told at
once, all of them, those that ended the answer included: they, and the usage, are what the target did. The text is what is
left of that for people.
"""

from __future__ import annotations

from typing import NamedTuple

from stress.endpoint.asking import Asked
from stress.endpoint.orders import End, Outcome, Piece, Ticket
from stress.endpoint.text import StopFinder
from stress.endpoint.tokens import Tokenizer

FINISH = {Outcome.STOP: "stop", Outcome.LENGTH: "length", Outcome.CONTEXT: "length"}
"""What OpenAI's API calls the outcomes that are answers."""


class Told(NamedTuple):
    """A token of the answer as its log-probability is told.

    Attributes:
        begins: Where its text begins in the answer, in characters.
        likeliest: (id, log-probability), the likeliest first.
    """

    token: int
    begins: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


class Delta(NamedTuple):
    """What a client reads next of one answer; `finish` is why it ends here, None where it goes on."""

    text: str
    logprobs: list[Told]
    ids: list[int]
    finish: str | None


class Choice:
    """One request's answer in the making.

    Attributes:
        ticket: The request.
        stopped: Whether a stop string was found: nobody wants any more of it.
        ended: Whether all of it was told.
        tokens: As many tokens it took so far.
    """

    def __init__(self, ticket: Ticket, asked: Asked, tokenizer: Tokenizer) -> None:
        self.ticket = ticket
        self.shown = asked.shown
        self.stopped = self.ended = False
        self.tokens = 0
        self._ends = frozenset(ticket.request.stop)
        self._writer = tokenizer.writer()
        self._finder = StopFinder(asked.stops)
        self._written = self._passed = 0
        self._waiting: list[Told] = []

    def take(self, event: Piece | End) -> Delta | None:
        """What there is to read after an event; None where there is nothing, or the answer has ended.

        An end that is no answer is the caller's to tell.
        """
        if self.ended:
            return None
        if isinstance(event, End):
            self.ended = True
            text = self._pass(self._writer.flush(), last=True)
            return Delta(text, self._release(last=True), [], "stop" if self.stopped else FINISH[event.outcome])
        self.tokens += 1
        if event.token in self._ends:
            return Delta("", [], [event.token], None)
        if event.logprobs and self.shown is not None:
            (_, logprob), *likeliest = event.logprobs
            self._waiting.append(Told(event.token, self._written, logprob, tuple(likeliest[: self.shown])))
        text = self._pass(self._writer.push(event.token))
        if self.stopped:
            self.ended = True
            return Delta(text, self._release(), [event.token], "stop")
        return Delta(text, self._release(), [event.token], None)

    def _pass(self, piece: str, last: bool = False) -> str:
        """What may be told of the text, now that a piece has come."""
        self._written += len(piece)
        text = self._finder.push(piece)
        self.stopped = self._finder.found
        if last and not self.stopped:
            text += self._finder.flush()
        self._passed += len(text)
        return text

    def _release(self, last: bool = False) -> list[Told]:
        """The tokens whose text begins in what has been told; with the last of it, those that have none as well."""
        if not self._waiting:
            return []
        if last and not self.stopped:
            ready, self._waiting = self._waiting, []
        else:
            ready = [told for told in self._waiting if told.begins < self._passed]
            self._waiting = self._waiting[len(ready) :]
        return ready
