"""The tally: latencies of each answer as rows of locust's own statistics, so that its page, CSV and HTML have them.

A row is logged into its own entry and not into the aggregate, which stays that of the requests. Locust keeps times below
100 ms to the millisecond and larger ones to two digits; `load.json` has them as they are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

from stress.load.latency import Latency, latency_of, misses
from stress.load.plan import Slo
from stress.transcript import Exchange

TTFT, ITL, TPOT, RATE, GOOD = "TTFT", "ITL", "TPOT", "tokens/s", "SLO"


class Entry(Protocol):
    """A row of locust's statistics."""

    def log(self, response_time: int, content_length: int) -> None:
        """Adds a figure."""

    def log_error(self, error: Exception | str | None) -> None:
        """Counts a failure."""


class Statistics(Protocol):
    """Locust's statistics."""

    def get(self, name: str, method: str) -> Entry:
        """The row of that name and kind."""


def tally(statistics: Statistics, name: str, exchange: Exchange, slo: Slo) -> None:
    """Adds an answer's figures to the rows of `name`; of those that were not answered only the goodput tells."""
    latency = latency_of(exchange)
    if exchange.outcome == "answered" and latency is not None:
        _times(statistics, name, exchange, latency)
    if slo != Slo() and exchange.outcome != "cancelled":
        row = statistics.get(name, GOOD)
        row.log(round(1000 * (exchange.ended_s - exchange.sent_s)), 0)
        missed = misses(exchange, latency, slo)
        if missed:
            row.log_error(missed)


def _times(statistics: Statistics, name: str, exchange: Exchange, latency: Latency) -> None:
    statistics.get(name, RATE).log(round(latency.tokens_per_s), 0)
    if not exchange.streamed:
        return
    statistics.get(name, TTFT).log(round(latency.ttft_ms), 0)
    row = statistics.get(name, ITL)
    for before, after in pairwise(exchange.pieces):
        row.log(round(1000 * (after.at_s - before.at_s)), 0)
    if latency.tpot_ms is not None:
        statistics.get(name, TPOT).log(round(latency.tpot_ms), 0)
