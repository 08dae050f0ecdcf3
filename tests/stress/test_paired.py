"""The factor between two ways, and how sure it is."""

from __future__ import annotations

import pytest

from stress.benches.paired import factor_of


def test_a_factor_that_each_pair_has_is_sure() -> None:
    found = factor_of([2.0, 6.0, 20.0], [1.0, 3.0, 10.0], seed=1)
    assert (found.pairs, found.factor, found.low, found.high) == (3, 2.0, 2.0, 2.0)
    assert str(found) == "2.000 (2.000 to 2.000)"


def test_pairs_that_differ_leave_it_open() -> None:
    found = factor_of([1.0, 4.0] * 8, [1.0, 1.0] * 8, seed=1)
    assert found.factor == pytest.approx(2.0)
    assert 1.0 < found.low < 2.0 < found.high < 4.0
    assert found == factor_of([1.0, 4.0] * 8, [1.0, 1.0] * 8, seed=1), "the same each time"


def test_many_pairs_are_surer_than_few() -> None:
    few, many = (factor_of([1.0, 4.0] * count, [1.0, 1.0] * count, seed=1) for count in (2, 50))
    assert many.high - many.low < (few.high - few.low) / 2


def test_a_slower_machine_is_slower_for_both() -> None:
    assert factor_of([95.0, 9.5], [100.0, 10.0], seed=1).factor == pytest.approx(0.95)
