"""Latency: the times of one answer, and whether they are good enough.

TTFT is from sending to the first piece; ITL from one piece to the next; TPOT from the first to the last, a token, without
the first one. All as a client sees them, with the connection in them.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stress.load.plan import Slo
from stress.transcript import Exchange


class Latency(msgspec.Struct, frozen=True):
    """Times of an answer of which anything was heard.

    Attributes:
        itl_ms_max: The longest pause between two pieces; None where there is one piece.
        tpot_ms: None where there is one token, or it was not streamed.
        tokens: New ones, as ids or as the endpoint counts them, else pieces.
        tokens_per_s: From sending to the end.
    """

    ttft_ms: float
    itl_ms_max: float | None
    tpot_ms: float | None
    e2e_ms: float
    tokens: int
    tokens_per_s: float


def tokens_of(exchange: Exchange) -> int:
    """New tokens of an answer."""
    if exchange.usage is not None and exchange.usage.completion:
        return exchange.usage.completion
    return len(exchange.tokens) or len(exchange.pieces)


def gaps_ms(exchange: Exchange) -> list[float]:
    """Every pause between two pieces."""
    return [1000 * (after.at_s - before.at_s) for before, after in pairwise(exchange.pieces)]


def latency_of(exchange: Exchange) -> Latency | None:
    """The times of an answer; None where nothing was heard."""
    if not exchange.pieces:
        return None
    first, last = exchange.pieces[0].at_s, exchange.pieces[-1].at_s
    tokens = tokens_of(exchange)
    e2e_s = exchange.ended_s - exchange.sent_s
    return Latency(
        ttft_ms=1000 * (first - exchange.sent_s),
        itl_ms_max=max(gaps_ms(exchange), default=None),
        tpot_ms=1000 * (last - first) / (tokens - 1) if exchange.streamed and tokens > 1 else None,
        e2e_ms=1000 * e2e_s,
        tokens=tokens,
        tokens_per_s=tokens / max(e2e_s, 1e-9),
    )


def misses(exchange: Exchange, latency: Latency | None, slo: Slo) -> str:
    """The first thing in which an exchange misses its SLO; empty where it keeps it."""
    if exchange.outcome != "answered" or latency is None:
        return exchange.outcome
    limits = (
        ("TTFT", latency.ttft_ms, slo.ttft_ms),
        ("ITL", latency.itl_ms_max, slo.itl_ms),
        ("TPOT", latency.tpot_ms, slo.tpot_ms),
        ("end to end", latency.e2e_ms, slo.e2e_ms),
    )
    for name, measured, limit in limits:
        if limit is not None and measured is not None and not measured <= limit:
            return f"{name} over {limit:g} ms"
    return ""
