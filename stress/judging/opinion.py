"""Opinions: what is found of one response, as data."""

from __future__ import annotations

import enum

import msgspec

from targets.protocol import Kind


class Standing(enum.StrEnum):
    """How a response stands."""

    RIGHT = "right"
    WRONG = "wrong"
    SUSPECT = "suspect"
    """Beyond rounding, and only an experiment can tell."""
    LOST = "lost"
    """Nothing was heard of it, or not all of it, and nobody said why. What was heard is right."""
    UNJUDGED = "unjudged"
    UNREACHED = "unreached"
    """It never got to the endpoint, which is to blame for nothing."""


class Complaint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing wrong with a response.

    Attributes:
        kind: None where only an experiment can tell.
        position: Index into its answer, where a token is concerned.
        expected, actual: Tokens, or the endpoint's text where it tells no ids.
        size, bound: How far it is from the reference, and what rounding explains of it.
    """

    what: str
    kind: Kind | None = None
    position: int | None = None
    expected: int | None = None
    actual: int | None = None
    size: float | None = None
    bound: float | None = None


class Opinion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is found of one response.

    Attributes:
        source: The name of its transcript's file, without its ending.
        number: Of the request in that transcript.
        outcome: As the client had it; "begun" where it heard nothing.
        tokens: As many were heard.
        judged: As many of them were held against what they should be.
        complaints: The first is the one that counts.
        why: Why it could not be judged.
    """

    source: str
    number: int
    outcome: str
    standing: Standing
    tokens: int = 0
    judged: int = 0
    submission: int | None = None
    complaints: tuple[Complaint, ...] = ()
    why: str = ""

    @property
    def name(self) -> tuple[str, int]:
        """Of the request."""
        return self.source, self.number
