"""`slotfuzz replay`: stored failures again, each FAILED, FIXED or ERROR."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from fuzz import repro as repros
from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.finding import Finding
from targets.protocol import BadInput, Factory, digest
from targets.registry import TargetSpec, build


class Outcome(enum.StrEnum):
    """What became of a stored failure."""

    FAILED = "FAILED"
    FIXED = "FIXED"
    ERROR = "ERROR"


class Replayed(msgspec.Struct, frozen=True):
    """One repro replayed.

    Attributes:
        same_bits: Whether the trace is the stored one, logits included. Other versions or another machine may differ.
        error: Why it could not be replayed, in a sentence.
    """

    repro: str
    outcome: Outcome
    same_bits: bool = False
    finding: Finding | None = None
    error: str = ""


class Replayer:
    """Replays repros one after another; those of one target share its model."""

    def __init__(self) -> None:
        self._factories: dict[TargetSpec, Factory] = {}

    def replay(self, path: Path) -> Replayed:
        """One repro; what is wrong with its file or its target is an ERROR with a sentence."""
        try:
            repro = repros.load(path)
            if repro.target not in self._factories:
                self._factories[repro.target] = build(repro.target)
            factory = self._factories[repro.target]
            repros.check_against(repro, factory, str(path))
        except BadInput as error:
            return Replayed(str(path), Outcome.ERROR, error=str(error))
        judge = Judge(factory)
        trace = run_trio(judge.replay, repro.schedule)
        wanted = repro.finding
        finding = run_trio(judge.same, repro.schedule, wanted.kind, wanted.check)
        outcome = Outcome.FIXED if finding is None else Outcome.FAILED
        return Replayed(str(path), outcome, same_bits=digest(trace) == repro.trace_digest, finding=finding)
