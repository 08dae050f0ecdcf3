"""What the decoder's tests share: factories over the default model, whose networks are loaded once a process."""

from __future__ import annotations

import pytest

from targets.decoder import DecoderFactory
from targets.models import Model


@pytest.fixture(scope="session")
def paged(tiny: Model) -> DecoderFactory:
    """The built-in target with pages."""
    return DecoderFactory(tiny, name="pages")


@pytest.fixture(scope="session")
def slotted(tiny: Model) -> DecoderFactory:
    """The built-in target with slots."""
    return DecoderFactory(tiny)


@pytest.fixture(scope="session")
def private(tiny: Model) -> DecoderFactory:
    """The built-in target with a cache for each request."""
    return DecoderFactory(tiny, name="private")
