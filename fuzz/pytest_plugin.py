"""Pytest plugin: the profile of `fuzz.testing.isolation_test`, on the command line. Loaded by every pytest, so it is light.

`--slotfuzz-profile ci` (the default) draws the same schedules each time; `nightly` draws others each time, and says from
which seed. The controller of pytest-xdist decides, and its workers inherit it by the environment.
"""

from __future__ import annotations

import os
import secrets

import pytest

PROFILE, SEED = "SLOTFUZZ_PROFILE", "SLOTFUZZ_SEED"
PROFILES = ("ci", "nightly")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds our options."""
    group = parser.getgroup("slotfuzz")
    group.addoption("--slotfuzz-profile", choices=PROFILES, help="ci: the same schedules each time; nightly: others.")
    group.addoption("--slotfuzz-seed", type=int, metavar="N", help="Schedules from this seed, as an earlier run said it.")


def pytest_configure(config: pytest.Config) -> None:
    """Decides on a seed, once for all processes."""
    profile, seed = config.getoption("--slotfuzz-profile"), config.getoption("--slotfuzz-seed")
    if profile is not None:
        os.environ[PROFILE] = profile
    if seed is not None:
        os.environ[SEED] = str(seed)
    elif os.environ.get(PROFILE) == "nightly":
        os.environ.setdefault(SEED, str(secrets.randbelow(2**32)))


def pytest_report_header() -> str | None:
    """Says so where it is not the default."""
    if PROFILE not in os.environ and SEED not in os.environ:
        return None
    return f"slotfuzz: profile {os.environ.get(PROFILE, 'ci')}, seed {os.environ.get(SEED, '0')}"
