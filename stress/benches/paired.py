"""Paired: by what factor one way differs from another that was measured in the same rounds, and how sure that is.

A machine that is slower for a while is so for both of a pair. The factor is the geometric mean of the pairs' ratios; its
interval is that of means of as many pairs, drawn again and again from those that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

DRAWN = 10_000
LEVEL = 0.95


class Factor(msgspec.Struct, frozen=True):
    """A factor with its 95% interval; of one pair there is none."""

    pairs: int
    factor: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.factor:.3f} ({self.low:.3f} to {self.high:.3f})"


def factor_of(measured: Sequence[float], against: Sequence[float], seed: int) -> Factor:
    """The factor between two ways, from one figure a round of each."""
    logs = np.log(np.array(measured) / np.array(against))
    drawn = np.random.default_rng(seed).choice(logs, (DRAWN, len(logs))).mean(axis=1)
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    mean, below, above = (round(float(np.exp(each)), 4) for each in (logs.mean(), low, high))
    return Factor(len(logs), mean, below, above)
