"""Drafts: tokens that a request will perhaps say next, guessed so that one forward may give it several (speculation).

The guess is a lookup in its own text: where the last few tokens of prompt and answer stand once before, it may go on as it
did there. Guesses ride in the row of the request's newest token, each behind the one before it, and the forward gives the
logits behind every one of them. Those that the request would have chosen anyway are its answer; at the first one that it
would not, its own choice counts and the others are dropped. So the answer is the one without speculation, token by token,
whatever the parameters: penalties, noise and stops see every token before the next one is chosen.

Invariant: a draft's cell lies behind the length until the draft has come true. Nothing is rolled back but what was never
counted: a rejected cell is hidden by the mask, found by nobody, and written over by the next token that comes there.

Speculation rests for a row whose newest token is not known yet (always, where results come a step late), in prompts, where
the step's budget, the pool or a ring has no room left, and where one token more ends the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from targets.decoder.planner import Planner
from targets.decoder.running import Running
from targets.decoder.store import Store
from targets.protocol import Drafted, Event

LOOKUP_MAX = 3
"""As many last tokens are looked for, then one less, down to the last one alone."""


class Drafter:
    """Guesses what rows that decode will say next.

    Attributes:
        tokens_max: At most so many at once; 0 where nothing is guessed.
        counts: Of drafts: how many were run, came true and did not; and how often cells stayed behind uncounted.
    """

    def __init__(self, tokens_max: int, planner: Planner, store: Store) -> None:
        self.tokens_max = tokens_max
        self.planner = planner
        self.store = store
        self.counts: Counter[str] = Counter()

    def draft(self, running: Sequence[Running]) -> list[Event]:
        """Gives rows that decode their drafts, as long as there is room; the step's other tokens have theirs already."""
        events: list[Event] = []
        left = self.planner.step_tokens_max
        left = None if left is None else left - sum(each.share for each in running)
        for each in running:
            most = self.most(each)
            drafts = self.guess(each, most if left is None else min(most, left)) if each.share else []
            if drafts and each.slot is not None and self.store.reserve(each.slot, each.fed, 1 + len(drafts)):
                each.drafts = drafts
                left = None if left is None else left - len(drafts)
                self.counts["drafted"] += len(drafts)
                events.append(Drafted(each.submission, len(drafts)))
        return events

    def most(self, running: Running) -> int:
        """As many drafts as a request may have: its last token is never one, for nothing is asked behind it."""
        request, answer = running.request, len(running.answer)
        if not answer or running.in_flight or running.fed != len(request.prompt) + answer - 1:
            return 0
        answer_max = min(request.max_new_tokens, self.planner.positions - len(request.prompt))
        return min(self.tokens_max, self.planner.most(running.fed) - 1, answer_max - answer - 1)

    def guess(self, running: Running, most: int) -> list[int]:
        """What came behind the last few tokens where they stood before, as late as possible: so many tokens, or none."""
        return looked_up(running.tokens(), most) if most > 0 else []

    def judge(self, running: Running, said: int) -> None:
        """A row's forward gave so many tokens: all but one are drafts that came true."""
        true, drafted = said - 1, len(running.drafts)
        self.counts["accepted"] += true
        self.counts["rejected"] += drafted - true
        self.counts["rolled_back"] += true < drafted


def looked_up(tokens: list[int], most: int) -> list[int]:
    """As many tokens, as they follow the latest earlier place of the longest end of `tokens` that has one; none if none has.

    Where they come to the end of the text they go on in the guess itself: what has begun to repeat itself goes on so.
    """
    for size in range(min(LOOKUP_MAX, len(tokens) - 1), 0, -1):
        end = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == end:
                round_ = tokens[start + size :]
                return (round_ * (most // len(round_) + 1))[:most]
    return []
