"""Trust: cells of low trust weigh less. Experimental, and off unless the knob `trust_bias` says otherwise.

A request says which of its prompt's tokens are of low trust (`Request.untrusted`). Whoever of its tokens stands outside that
range attends to the cells in it with a bias: minus so many nats before the softmax, so that each weighs e to the power of
that less against the others. Tokens of low trust see each other as they are, so that their own cells do not change.

Invariant: where no row of a forward has such cells, its mask is the one that it would have been, bit for bit.
"""

from __future__ import annotations

import msgspec
import torch

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.protocol import Request


class Trust:
    """Which cells of which slot are of low trust.

    Attributes:
        nats: How much is taken from the logits of such cells; 0 where labels mean nothing.
        ranges: By slot, (first, end) of their positions; slots without any are absent.
    """

    def __init__(self, layout: Layout) -> None:
        self.nats = layout.trust_bias
        self.dtype = layout.arithmetic
        self.ranges: dict[int, tuple[int, int]] = {}

    def counts(self, request: Request) -> bool:
        """Whether a request has tokens of low trust, and that means something."""
        return bool(self.nats) and request.untrusted[0] < request.untrusted[1]

    def apart(self, submission: int, request: Request) -> Request:
        """The request, under a salt of its own where its cells are what they are because of its labels."""
        return msgspec.structs.replace(request, salt=-2 - submission) if self.counts(request) else request

    def label(self, slot: int, request: Request) -> None:
        """A new owner moves in."""
        self.ranges.pop(slot, None)
        if self.counts(request):
            self.ranges[slot] = request.untrusted

    def weigh(self, seen: torch.Tensor, held: torch.Tensor, rows: Rows) -> torch.Tensor:
        """What a query may see, bool [B, 1, Q, T], with the bias on what is of low trust: then in the network's dtype.

        Args:
            held: The position that each cell holds, int64 [T] or [B, 1, 1, T].
        """
        ranges = [self.ranges.get(slot, (0, 0)) for slot in rows.slots.tolist()]
        if not any(end for _, end in ranges):
            return seen
        first, end = torch.tensor(ranges, device=seen.device)[:, None, None, None].unbind(-1)  # [B, 1, 1, 1] each
        queries = rows.positions[:, None, :, None]
        low = (held >= first) & (held < end) & ~((queries >= first) & (queries < end))
        bias: torch.Tensor = low.to(self.dtype) * -self.nats
        return bias.masked_fill(~seen, torch.finfo(self.dtype).min)
