"""Convict: the finding that a suspect and its experiments come to."""

from __future__ import annotations

import msgspec

from oracle.case import Case
from oracle.departure import Suspect
from oracle.finding import Finding
from targets.protocol import CheckName, Kind


def convicted(case: Case, suspect: Suspect, kind: Kind, evidence: list[str]) -> Finding:
    """The finding that a suspect of this kind is."""
    what = {
        Kind.WRONG_ALONE: "is wrong even when it is alone",
        Kind.STALE_HIT: "was given from a cache what it would not have computed",
        Kind.INTERFERENCE: "depends on who else is there, though not on what they ask",
    }[kind]
    check = CheckName.WARMTH if kind is Kind.STALE_HIT else CheckName.ISOLATION
    found = Finding(kind=kind, check=check, what=f"request #{suspect.submission} {what}")
    return completed(case, suspect, found, tuple(evidence))


def completed(case: Case, suspect: Suspect, found: Finding, evidence: tuple[str, ...]) -> Finding:
    """Adds what the reference knows of the victim; its whole isolated answer if the case is thorough."""
    who = suspect.submission
    return msgspec.structs.replace(
        found,
        submission=who,
        position=suspect.position,
        expected=suspect.expected,
        actual=suspect.actual,
        answer=case.answers[who],
        isolated=case.reference.greedy(case.requests[who], case.context_tokens_max) if case.thorough else (),
        size=suspect.size,
        bound=suspect.bound,
        evidence=evidence,
    )
