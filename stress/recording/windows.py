"""Windows: the part of an account in which a response went wrong: its own request, those it met, and ever more history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuzz.edits import with_ops
from stress.recording.account import Life
from stress.recording.narrowing import kept
from stress.transcript import Exchange
from targets.protocol import Request, Schedule, Submit

TOKENS_MAX = 40_000
"""A longer window is not played: prompt and new tokens of its requests."""


class Account:
    """The lives of a served target, and which client's request was which submission of which."""

    def __init__(self, lives: Sequence[Life], exchanges: Sequence[Exchange]) -> None:
        self.lives = lives
        told = {exchange.submission for exchange in exchanges if exchange.submission is not None}
        self._nameless: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for number, life in enumerate(lives):
            requests = [op.request for op in life.ops if isinstance(op, Submit)]
            for (submission, place), request in zip(life.places.items(), requests, strict=True):
                if submission not in told:
                    self._nameless.setdefault(_likeness(request), []).append((number, place))

    def place(self, exchange: Exchange) -> tuple[int, int] | None:
        """(life, submission in it) of a request; one whose client was not told is found by what it asked."""
        if exchange.submission is None:
            found = self._nameless.get(_likeness(exchange.request), [])
            return found[0] if found else None
        for number, life in enumerate(self.lives):
            if exchange.submission in life.places:
                return number, life.places[exchange.submission]
        return None

    def windows(self, exchange: Exchange, others: Sequence[Exchange]) -> Iterator[Schedule]:
        """Schedules that end where the response did, from short to long; the last one begins with the life."""
        found = self.place(exchange)
        if found is None:
            return
        number, victim = found
        life = self.lives[number]
        requests = [op.request for op in life.ops if isinstance(op, Submit)]
        begun = [each for each in others if each.sent_s <= exchange.ended_s and each.submission in life.places]
        last = max((life.places[each.submission] for each in begun if each.submission is not None), default=victim)
        met = [life.places[each.submission] for each in begun if each.submission and each.ended_s >= exchange.sent_s]
        first, last = min((victim, *met)), max(victim, last)
        width = last - first + 1
        while True:
            if sum(len(each.prompt) + each.max_new_tokens for each in requests[first : last + 1]) > TOKENS_MAX:
                return
            yield _between(life, first, last)
            if first == 0:
                return
            first, width = max(first - width, 0), 2 * width


def _likeness(request: Request) -> tuple[object, ...]:
    return request.prompt, request.max_new_tokens, request.salt, request.sampling.temperature


def _between(life: Life, first: int, last: int) -> Schedule:
    """A life from one submission to before the one that follows another."""
    places = [index for index, op in enumerate(life.ops) if isinstance(op, Submit)]
    end = places[last + 1] if last + 1 < len(places) else len(life.ops)
    whole = Schedule(ops=tuple(life.ops[:end]), settings=life.settings)
    window = kept(whole, set(range(first, last + 1)))
    begins = next(index for index, op in enumerate(window.ops) if isinstance(op, Submit))
    return with_ops(window, list(window.ops[begins:]))
