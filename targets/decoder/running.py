"""Running: what the decoder knows of a live request, and of a forward that it asked for and has not seen the results of."""

from __future__ import annotations

from dataclasses import dataclass, field

from targets.decoder.runner import Feed
from targets.decoder.store import Saved, States
from targets.protocol import Request

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
    in_flight: int = 0
    launches: int = 0
    saved: Saved | None = None
    states: States = ()

    def tokens(self) -> list[int]:
        """Prompt and answer, as far as they are known."""
        return [*self.request.prompt, *self.answer]

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


def cells_max(request: Request, positions: int) -> int:
    """As many cells as a request may come to: the last token of an answer is never fed."""
    return min(len(request.prompt) + request.max_new_tokens, positions) - 1
