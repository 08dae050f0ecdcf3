"""What all tests share: one thread, Hypothesis settings of our own, and the default model, built once a process."""

from __future__ import annotations

import signal

import hypothesis
import pytest
import torch

from targets.decoder import DecoderFactory
from targets.models import Model, find_model


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the order of a sum must not depend on how many cores are free
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: what we start must hear Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # With CI set, Hypothesis' own profile would derandomize every test; ours starts from the default one everywhere.
    default = hypothesis.settings.get_profile("default")
    hypothesis.settings.register_profile(
        "slotfuzz", parent=default, derandomize=False, database=None, deadline=None, print_blob=True
    )
    hypothesis.settings.load_profile("slotfuzz")
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = "0"


@pytest.fixture(scope="session")
def tiny() -> Model:
    """The default model. Frozen: every `load` gives a network in memory of its own."""
    return find_model("tiny")


@pytest.fixture
def slots(tiny: Model) -> DecoderFactory:
    """The built-in target over the default model."""
    return DecoderFactory(tiny)
