"""Names of the checks and of the kinds of wrong: enums here, so that a fault can declare what may rightly find it."""

from __future__ import annotations

import enum


class CheckName(enum.StrEnum):
    """One question that the oracle puts to a schedule and its trace."""

    ISOLATION = "isolation"
    SWAP = "swap"
    BOOKKEEPING = "bookkeeping"
    OWNERSHIP = "ownership"
    PROGRESS = "progress"
    SURVIVAL = "survival"
    RESIDUE = "residue"
    PROVENANCE = "provenance"
    REPEAT = "repeat"
    WARMTH = "warmth"
    ECHO = "echo"


class Kind(enum.StrEnum):
    """What is wrong. Decided before shrinking, and kept by it."""

    LEAK = "LEAK"
    """The victim's bits depend on another request's content, present or past."""
    INTERFERENCE = "INTERFERENCE"
    """It depends on the neighbours' presence, lengths or timing, beyond rounding, but not on their content."""
    WRONG_ALONE = "WRONG-ALONE"
    """It differs from the reference even when alone in a fresh target."""
    STALE_HIT = "STALE-HIT"
    """What came from a cache is not what the request would have computed."""
    ECHO = "ECHO"
    """Its token is not the one that its own sampling parameters choose from its own logits."""
    OWNERSHIP = "OWNERSHIP"
    """A slot has no owner, two owners, or an owner that has ended; it holds the wrong number of cells; two owners' memory
    overlaps."""
    BOOKKEEPING = "BOOKKEEPING"
    """A piece lost, doubled or late; a wrong finish reason; no end, or two."""
    STALLED = "STALLED"
    """A request waits for ever, or nothing advances."""
    CRASHED = "CRASHED"
    """The target raised."""
    NONFINITE = "NONFINITE"
    """A logit is NaN or infinite."""
