"""Running: what the decoder knows of a live request, and of a forward that it asked for and has not seen the results of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from targets.decoder.runner import Feed
from targets.decoder.sampler import stops
from targets.decoder.store import Saved, States
from targets.protocol import Reason, Request

UNKNOWN = -1
"""In a feed: the token that the launch before this one will choose."""


@dataclass(slots=True)
class Running:
    """A live request.

    Attributes:
        slot: None while it waits.
        answer: Grows by one token at a time.
        fed: As many of its tokens (prompt, then answer) were handed to forwards since it was admitted.
        share: As many of them this step hands on.
        drafts: Guessed tokens that it hands on behind those.
        in_flight: Tokens of its answer that forwards in flight will choose: 0 or 1.
        launches: Forwards in flight that it is in.
        saved: Its cells in host memory, while it waits after a preemption that moved them there.
        states: Its recurrent states then.
    """

    submission: int
    request: Request
    slot: int | None = None
    answer: list[int] = field(default_factory=list)
    fed: int = 0
    share: int = 0
    drafts: Sequence[int] = ()
    in_flight: int = 0
    launches: int = 0
    saved: Saved | None = None
    states: States = ()

    def ending(self, positions: int) -> Reason | None:
        """Why it ends with its last token, or None; `positions` are as many as a request may come to."""
        if stops(self.request, self.answer):
            return Reason.STOP
        if len(self.answer) >= self.request.max_new_tokens:
            return Reason.LENGTH
        return Reason.CONTEXT if len(self.request.prompt) + len(self.answer) >= positions else None

    def tokens(self) -> list[int]:
        """Prompt and answer, as far as they are known."""
        return [*self.request.prompt, *self.answer]

    def with_drafts(self, feed: Feed) -> Feed:
        """What it brings, and its guesses behind that."""
        return feed._replace(tokens=[*feed.tokens, *self.drafts], drafts=len(self.drafts))

    def piece(self, first: int, count: int) -> list[int]:
        """Some of these tokens; the one that is not known yet is UNKNOWN."""
        prompt, answer = self.request.prompt, self.answer
        inside = list(prompt[first : first + count])
        start = max(0, first - len(prompt))
        inside += answer[start : start + count - len(inside)]
        return inside + [UNKNOWN] * (count - len(inside))


@dataclass(slots=True)
class Launch:
    """A forward that was asked for: its feeds, whose they are, and which requests get a token from it.

    Attributes:
        retiring: Requests that ended meanwhile and still hold what it writes to.
    """

    feeds: list[Feed]
    running: list[Running]
    complete: list[bool]
    retiring: list[Running] = field(default_factory=list)

    @classmethod
    def of(cls, feeds: list[Feed], running: list[Running]) -> Launch:
        """Sends these requests off with what they bring, each as far as its share goes."""
        complete = []
        for each in running:
            each.fed += each.share
            each.launches += 1
            complete.append(each.fed == len(each.request.prompt) + len(each.answer) + each.in_flight)
            each.in_flight += complete[-1]
        return cls(feeds, running, complete)

    def landed(self, chosen: Mapping[int, int]) -> list[Feed]:
        """They are back, or about to be: what the forward is fed, now that the launch before it has `chosen` its tokens."""
        for each, complete in zip(self.running, self.complete, strict=True):
            each.launches -= 1
            each.in_flight -= complete
        return [
            feed._replace(tokens=[chosen[feed.submission]]) if feed.tokens[-1] == UNKNOWN else feed for feed in self.feeds
        ]


def cells_max(request: Request, positions: int) -> int:
    """As many cells as a request may come to: the last token of an answer is never fed."""
    return min(len(request.prompt) + request.max_new_tokens, positions) - 1
