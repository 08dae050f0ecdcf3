"""Planner: how many tokens of each row go into a step's forward.

Whoever decodes has its one token before any prompt has more: a step's budget of tokens delays prompts, not answers. A prompt
of one token waits behind those before it like any other, or a stream of such would hold up a longer one for ever.
"""

from __future__ import annotations

from collections import Counter

from targets.decoder.layout import Layout
from targets.decoder.running import Running
from targets.models import Plan


class Planner:
    """Shares a step's tokens out.

    Attributes:
        step_tokens_max: Of all rows together; None for no limit.
        pages: The size of the pages at whose ends a forward must end; None where it need not.
        counts: How often a row's turn did not come to the end of its tokens, counted when it is launched: a plan may be made
            twice.
    """

    def __init__(self, plan: Plan, layout: Layout, shares: bool, step_tokens_max: int | None) -> None:
        self.row_tokens_max = layout.append_max
        self.step_tokens_max = step_tokens_max
        self.positions = layout.positions
        # Recurrent states are kept for others where a page ends: there is no going back to there later.
        self.pages = layout.page_size if plan.recurrent and shares else None
        self.counts = Counter({"chunked": 0})

    def share_out(self, named: list[Running]) -> list[Running]:
        """Sets each request's share: one token for those that decode, then what is left of the budget for prompts."""
        for each in named:
            each.share = min(self.due(each), self.most(each.fed))
        budget = self.step_tokens_max
        if budget is not None:
            for each in sorted(named, key=lambda it: self.due(it) > 1 or it.fed < len(it.request.prompt)):
                each.share = min(each.share, budget)
                budget -= each.share
        return [each for each in named if each.share]

    def most(self, fed: int) -> int:
        """As many tokens as one forward may take of a request of which it had so many."""
        if self.pages is not None:
            return self.pages - fed % self.pages
        return self.positions if self.row_tokens_max is None else self.row_tokens_max

    def due(self, running: Running) -> int:
        """How many of a request's tokens have not been handed to a forward; none if what is in flight ends it."""
        request, answer = running.request, len(running.answer) + running.in_flight
        last = answer >= request.max_new_tokens or len(request.prompt) + answer >= self.positions
        return 0 if last and running.in_flight else len(request.prompt) + answer - running.fed
