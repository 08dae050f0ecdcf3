"""`slotfuzz replay`: stored failures again, each FAILED, FIXED or ERROR."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from fuzz import repro as repros
from fuzz.conductor import run_trio
from fuzz.judge import Judge, Judgement, first_of
from fuzz.stage import Renewing
from fuzz.worker import Patience, stage_for
from oracle.dispute import dispute
from oracle.finding import Finding
from targets.protocol import BadInput, CheckName, Factory, Schedule, digest
from targets.registry import TargetSpec, build

IN_ITS_PLACE = (CheckName.SURVIVAL, CheckName.PROGRESS, CheckName.BOOKKEEPING)
"""Checks that cost no replay: what they find cuts a schedule short, so that what was looked for can't show."""


class Outcome(enum.StrEnum):
    """What became of a stored failure."""

    FAILED = "FAILED"
    FIXED = "FIXED"
    ERROR = "ERROR"


class Replayed(msgspec.Struct, frozen=True):
    """One repro replayed.

    Attributes:
        same_bits: Whether the trace is the stored one, logits included. Other versions or another machine may differ.
        finding: What is wrong now; the stored finding, which names sources, where the bits are the same.
        schedule: What was replayed.
        dispute: Where nothing is found and the answer is not the isolated one all the same: what experiments say of that.
        undecided: Where it is not found again: why that is no proof that it is gone.
        error: Why it could not be replayed, in a sentence.
    """

    repro: str
    outcome: Outcome
    same_bits: bool = False
    finding: Finding | None = None
    schedule: Schedule | None = None
    dispute: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    error: str = ""


class Replayer:
    """Replays repros one after another; those of one target share its model, its reference and its rounding bound.

    Attributes:
        own: The one target outside slotfuzz that may be imported: a repro is data, and must not choose code to run.
        python: Another interpreter, which plays it; None for this one.
        in_process: Whether that target is played here rather than in a worker.
        patience: How long it may say nothing in a worker.
    """

    def __init__(
        self,
        own: str | None = None,
        in_process: bool = False,
        patience: Patience | None = None,
        python: Path | None = None,
    ) -> None:
        self.own = own
        self.python = python
        self.in_process = in_process
        self.patience = patience or Patience()
        self._factories: dict[TargetSpec, Factory] = {}
        self._judges: dict[TargetSpec, Judge] = {}

    def replay(self, path: Path) -> Replayed:
        """One repro; what is wrong with its file or its target is an ERROR with a sentence."""
        try:
            repro, factory = self.open(path)
            judge = self.judge(repro.target, factory)
            trace = run_trio(judge.replay, repro.schedule)
            if digest(trace) != repro.trace_digest and not isinstance(judge.stage, Renewing):
                judge.stage = Renewing(judge.stage)  # what was replayed before it may have left something behind
                trace = run_trio(judge.replay, repro.schedule)
        except BadInput as error:
            sentence = " ".join(str(error).split())
            where = "" if str(path) in sentence else f" ({path})"
            return Replayed(str(path), Outcome.ERROR, error=sentence + where)
        wanted = repro.finding
        judgement = run_trio(judge.look_for, repro.schedule, wanted.kind, wanted.check)
        finding = first_of(judgement.findings, wanted.kind, wanted.check)
        same_bits = digest(trace) == repro.trace_digest
        if finding is None:
            told: tuple[str, ...] = ()
            if wanted.submission is not None and factory.control.forced:
                told = run_trio(judge.drive, dispute(judge.case(repro.schedule, trace), wanted.submission))
            undecided = _open_questions(judge, judgement)
            return Replayed(str(path), Outcome.FIXED, same_bits, schedule=repro.schedule, dispute=told, undecided=undecided)
        return Replayed(str(path), Outcome.FAILED, same_bits, wanted if same_bits else finding, repro.schedule)

    def close(self) -> None:
        """Ends the workers."""
        for judge in self._judges.values():
            judge.stage.close()

    def open(self, path: Path) -> tuple[repros.Repro, Factory]:
        """A repro and its target's factory.

        Raises:
            BadInput: where the file is no repro, or its target is not the one it was found on.
        """
        repro = repros.load(path)
        factory = self._factory(repro.target, str(path))
        repros.check_against(repro, factory, str(path))
        return repro, factory

    def judge(self, spec: TargetSpec, factory: Factory) -> Judge:
        """The judge of a spec, one for all its repros."""
        if spec not in self._judges:
            self._judges[spec] = Judge(factory, stage_for(spec, factory, self.in_process, self.patience, python=self.python))
        return self._judges[spec]

    def _factory(self, spec: TargetSpec, where: str) -> Factory:
        """The factory of a spec, built once."""
        ours = self.own is None and spec.target.startswith("targets.")
        if ":" in spec.target and spec.target != self.own and not ours:
            raise BadInput("--target", f"{spec.target} for this repro", self.own or "none", where)
        if spec not in self._factories:
            self._factories[spec] = build(spec, here=self.python is None)
        return self._factories[spec]


def _open_questions(judge: Judge, judgement: Judgement) -> tuple[str, ...]:
    """Why a judgement that lacks a finding does not prove that it is gone: others in its place, and what nobody knows."""
    cheap = run_trio(judge.ask, judgement.case, IN_ITS_PLACE)
    told = [f"{found.kind} in its place: {found.what}" for found in (*judgement.findings, *cheap.findings)]
    report = judgement.report
    return tuple(dict.fromkeys((*told, *judgement.crashed_checks, *cheap.crashed_checks, *report.unknown, *report.unstable)))
