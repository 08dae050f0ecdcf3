"""Findings and verdicts: what a check says, as data. Rendering lives elsewhere."""

from __future__ import annotations

import enum

import msgspec

from targets.protocol import CheckName, Kind


class Verdict(enum.IntEnum):
    """What is known of a schedule. Verdicts merge, and the worst wins."""

    PASS = 0
    UNKNOWN = 1
    FAIL = 2


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing wrong.

    Attributes:
        check: The check that convicted, which is not always the one that nominated.
        submission: The victim; None where nobody in particular is (a slot with no owner).
        position: Index into the victim's answer at which it first shows; None where no token is concerned.
        event: Index into the trace.
        expected, actual: Token ids, where tokens are concerned.
        isolated: The victim's full greedy answer alone; empty where no token is concerned.
        answer: The victim's answer as streamed.
        size: Largest logit difference to the reference (or the regret), and the rounding bound it stands against.
        sources: The neighbours whose content the victim depends on, where an experiment named them.
        evidence: Each experiment and its outcome, one sentence each.
    """

    kind: Kind
    check: CheckName
    what: str
    submission: int | None = None
    position: int | None = None
    event: int | None = None
    expected: int | None = None
    actual: int | None = None
    isolated: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    size: float | None = None
    bound: float | None = None
    sources: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()


class Report(msgspec.Struct, kw_only=True):
    """What one check returns.

    Attributes:
        suspects: Requests beyond the rounding envelope, nominated for an experiment.
        refuted: Suspects that an experiment cleared: rounding.
        unknown: Suspects that no experiment could decide, one sentence each.
        unstable: Replays of one schedule that differ though nothing tells them apart: no verdict.
        pairs: Swaps whose bits were compared to the end.
        pairs_undecided: Swaps whose skeletons departed first.
        cells: Cells whose shadow tags were looked at, each time that a row could see them.
        poisoned: Replays under another poison whose bits were compared to the end.
        poisoned_undecided: Those whose skeletons departed first.
    """

    findings: list[Finding] = []
    suspects: int = 0
    refuted: int = 0
    unknown: list[str] = []
    unstable: list[str] = []
    pairs: int = 0
    pairs_undecided: int = 0
    cells: int = 0
    poisoned: int = 0
    poisoned_undecided: int = 0

    def add(self, other: Report) -> None:
        """Takes another check's report in."""
        self.findings += other.findings
        self.suspects += other.suspects
        self.refuted += other.refuted
        self.unknown += other.unknown
        self.unstable += other.unstable
        self.pairs += other.pairs
        self.pairs_undecided += other.pairs_undecided
        self.cells += other.cells
        self.poisoned += other.poisoned
        self.poisoned_undecided += other.poisoned_undecided

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        if self.findings:
            return Verdict.FAIL
        return Verdict.UNKNOWN if self.unknown or self.unstable else Verdict.PASS
