"""Figures: a run's latencies, goodput and account, read from its transcripts when it has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from stress.load.account import Account, Accountant, exchanges
from stress.load.latency import gaps_ms, latency_of, misses
from stress.load.plan import Slo
from stress.transcript import Begun, Exchange

QUANTILES = (0.5, 0.9, 0.95, 0.99)
QUIET, BESIDE_NOISE = "victim in quiet", "victim beside noise"


class Spread(msgspec.Struct, frozen=True):
    """Of so many values these are the quantiles and the largest."""

    count: int
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one kind of user; None where there is nothing to measure."""

    answered: int
    tokens: int
    ttft_ms: Spread | None
    itl_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None
    tokens_per_s: Spread | None


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that kept the SLO, of those whose client did not hang up; None where nobody judged.

    Attributes:
        correct: Those of them whose answers were judged, and equal the reference.
    """

    slo: Slo
    asked: int
    kept: int
    kept_per_s: float
    missed: dict[str, int]
    correct: int | None
    correct_per_s: float | None


class Disturbance(msgspec.Struct, frozen=True):
    """By what factor a victim's latency grows beside noise: medians and 99th percentiles."""

    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a run.

    Attributes:
        seconds: From the first request to the last end.
        tokens_per_s: New tokens of all requests, also of those that were given up.
        noise: None where there was none.
    """

    seconds: float
    tokens: int
    tokens_per_s: float
    account: Account
    users: dict[str, Rows]
    goodput: Goodput | None
    noise: Disturbance | None


class _Gathered:
    """What is gathered of one kind of user."""

    def __init__(self) -> None:
        self.answered = self.tokens = 0
        self.ttft_ms: list[float] = []
        self.itl_ms: list[float] = []
        self.tpot_ms: list[float] = []
        self.e2e_ms: list[float] = []
        self.tokens_per_s: list[float] = []

    def add(self, exchange: Exchange) -> int:
        """Adds an exchange; returns its new tokens."""
        latency = latency_of(exchange)
        if latency is None:
            return 0
        self.tokens += latency.tokens
        if exchange.outcome == "answered":
            self.answered += 1
            self.e2e_ms.append(latency.e2e_ms)
            self.tokens_per_s.append(latency.tokens_per_s)
            if exchange.streamed:
                self.ttft_ms.append(latency.ttft_ms)
                self.itl_ms += gaps_ms(exchange)
            if latency.tpot_ms is not None:
                self.tpot_ms.append(latency.tpot_ms)
        return latency.tokens

    def rows(self) -> Rows:
        """As figures."""
        return Rows(
            answered=self.answered,
            tokens=self.tokens,
            ttft_ms=spread(self.ttft_ms),
            itl_ms=spread(self.itl_ms),
            tpot_ms=spread(self.tpot_ms),
            e2e_ms=spread(self.e2e_ms),
            tokens_per_s=spread(self.tokens_per_s),
        )


def spread(values: Sequence[float]) -> Spread | None:
    """Quantiles; None of nothing."""
    if not values:
        return None
    p50, p90, p95, p99 = (round(float(each), 3) for each in np.quantile(values, QUANTILES))
    return Spread(len(values), p50, p90, p95, p99, round(max(values), 3))


def figures_of(folder: Path, slo: Slo, correct: set[tuple[str, int]] | None) -> Figures:
    """Reads a run's transcripts.

    Args:
        correct: (process, number) of each request that was judged right; None where nobody judged.
    """
    gathered: defaultdict[str, _Gathered] = defaultdict(_Gathered)
    accountant = Accountant()
    missed: defaultdict[str, int] = defaultdict(int)
    kept: list[tuple[str, int]] = []
    first, last, tokens = float("inf"), 0.0, 0
    open_: dict[tuple[str, int], Begun] = {}
    for process, exchange in exchanges(folder, open_):
        accountant.add(process, exchange)
        tokens += gathered[exchange.user].add(exchange)
        first, last = min(first, exchange.sent_s), max(last, exchange.ended_s)
        if exchange.outcome != "cancelled":
            why = misses(exchange, latency_of(exchange), slo)
            if why:
                missed[why] += 1
            else:
                kept.append((process, exchange.number))
    account = accountant.account(open_)
    seconds = max(last - first, 1e-9)
    right = None if correct is None else sum(each in correct for each in kept)
    users = {user: each.rows() for user, each in sorted(gathered.items())}
    return Figures(
        seconds=seconds if account.sent else 0.0,
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        account=account,
        users=users,
        goodput=Goodput(
            slo=slo,
            asked=len(kept) + sum(missed.values()),
            kept=len(kept),
            kept_per_s=len(kept) / seconds,
            missed=dict(missed),
            correct=right,
            correct_per_s=None if right is None else right / seconds,
        )
        if slo != Slo() or correct is not None
        else None,
        noise=_disturbance(users),
    )


def _disturbance(users: dict[str, Rows]) -> Disturbance | None:
    """The victims' latencies beside noise over those in quiet."""
    quiet, noise = users.get(QUIET), users.get(BESIDE_NOISE)
    if quiet is None or noise is None:
        return None
    if not (quiet.ttft_ms and noise.ttft_ms and quiet.itl_ms and noise.itl_ms):
        return None
    return Disturbance(
        ttft_p50=noise.ttft_ms.p50 / quiet.ttft_ms.p50,
        ttft_p99=noise.ttft_ms.p99 / quiet.ttft_ms.p99,
        itl_p50=noise.itl_ms.p50 / max(quiet.itl_ms.p50, 1e-9),
        itl_p99=noise.itl_ms.p99 / max(quiet.itl_ms.p99, 1e-9),
    )
