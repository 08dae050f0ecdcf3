"""What the oracle's tests share: the tiny network in float64, as the reference sees it."""

from __future__ import annotations

import pytest
from torch import nn

from targets.models import Model


@pytest.fixture(scope="session")
def network(tiny: Model) -> nn.Module:
    """Float64, on the CPU; nobody writes to it."""
    return tiny.load("float64", "float64", "cpu")
