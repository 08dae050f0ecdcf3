"""Batches: many short, freshly seeded runs of a strategy that collect and never judge.

Hypothesis generates here and does not end or shrink anything: raising inside `@given` lets one bug hide another, and the
first fifty examples of a long run are tiny (first hits after 52 to 156 examples, against 5 to 18 in batches of 20).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

T = TypeVar("T")

BATCH = 20


def batches(strategy: st.SearchStrategy[T], seed: int) -> Iterator[T]:
    """Endless examples, the same for the same seed and versions."""
    round_ = 0
    while True:
        found: list[T] = []

        @hypothesis.seed(seed * 1_000_003 + round_)
        @hypothesis.settings(
            max_examples=BATCH,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(strategy)
        def collect(example: T) -> None:
            found.append(example)  # noqa: B023 (it is called below, in the same round)

        collect()
        yield from found
        round_ += 1
