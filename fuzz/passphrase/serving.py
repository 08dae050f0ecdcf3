"""Repeat and concurrent: the same input twice, and five at once. The oracle judges; drift is counted beside it.

*Drift* is a comparison of bits: how many tokens of a request have other logits, or are other tokens, than those of the
request that had a fresh target to itself. An honest target whose forwards take several rows may drift by rounding, and the
oracle says then that it was that; one that runs each row by itself has no drift at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from fuzz.worker import stage_for
from oracle.checks import CHECKS
from oracle.finding import Finding, Verdict
from targets.protocol import (
    Admitted,
    Emitted,
    Freed,
    Preempted,
    Request,
    Schedule,
    Setting,
    Submit,
    Trace,
    Wait,
    emitted_by_submission,
    submissions,
)
from targets.registry import TargetSpec, build

AT_ONCE_MIN = 2
"""With fewer requests that hold a slot at once nobody has a neighbour."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One way of asking, on one target.

    Attributes:
        way: What was done, in a few words.
        target: As on the command line.
        requests: How many there were.
        tokens: Tokens that were compared with those of the request alone.
        drifted: Those whose logits, or where none are shown the tokens themselves, have other bits.
        largest: The largest difference of a logit; 0 where no logits are shown.
        missing: Requests that gave fewer tokens than alone, or more.
        together: As many requests as held a slot at once, where they were to be at once.
        verdict, findings: What all checks of the oracle say.
    """

    way: str
    target: str
    requests: int
    tokens: int
    drifted: int
    largest: float
    missing: int
    verdict: str
    findings: tuple[Finding, ...]
    together: int | None = None

    @property
    def is_clean(self) -> bool:
        """Nothing found, nothing drifted, and all of it was there to be seen."""
        return self.told == Verdict.PASS.name

    @property
    def told(self) -> str:
        """The verdict, or what keeps a pass from being one."""
        if self.verdict != Verdict.PASS.name:
            return self.verdict
        if self.tokens < self.requests:
            return "undecided: some were not answered"
        if self.together is not None and self.together < AT_ONCE_MIN:
            return "undecided: they never met"
        if self.missing:
            return "undecided: answers of other lengths"
        return "undecided: other bits" if self.drifted else self.verdict


@dataclass
class Bench:
    """A target on which schedules are played, and the judge of it."""

    spec: TargetSpec
    settings: Mapping[str, Setting]

    def __post_init__(self) -> None:
        self.factory = build(self.spec)
        self.stage = stage_for(self.spec, self.factory)
        self.judge = Judge(self.factory, self.stage)

    def close(self) -> None:
        """Gives back what the stage holds."""
        self.stage.close()

    def fresh(self, schedule: Schedule) -> Trace:
        """The trace where nothing has run before."""
        stage = self.stage.renewed()
        try:
            return run_trio(stage.play, schedule)
        finally:
            stage.close()

    def played(self, way: str, schedule: Schedule, trace: Trace) -> Played:
        """Compares a trace with each request alone in a fresh target, and has the schedule judged."""
        requests, heard = submissions(schedule), emitted_by_submission(trace)
        lone: dict[Request, list[Emitted]] = {}
        tokens = drifted = missing = 0
        largest = 0.0
        for who, request in enumerate(requests):
            if request not in lone:
                alone = self.fresh(Schedule(ops=(Submit(request),), settings=schedule.settings))
                lone[request] = emitted_by_submission(alone).get(0, [])
            here = heard.get(who, [])
            missing += len(here) != len(lone[request])
            for ours, theirs in zip(here, lone[request], strict=False):
                tokens += 1
                differs, size = _drift(ours, theirs)
                drifted, largest = drifted + differs, max(largest, size)
        judgement = run_trio(self.judge.judge, schedule, tuple(CHECKS), True)
        return Played(
            way=way,
            target=" ".join(self.spec.arguments()) or "--target slots",
            requests=len(requests),
            tokens=tokens,
            drifted=drifted,
            largest=largest,
            missing=missing,
            verdict=judgement.verdict.name,
            findings=tuple(judgement.findings),
        )

    def repeat(self, requests: Sequence[Request]) -> list[Played]:
        """The same input twice on one target, where nothing had run before, and once more where just that had run."""
        played = []
        for request in requests:
            twice = Schedule(
                ops=(Submit(request), Wait(0, request.max_new_tokens), Submit(request)), settings=dict(self.settings)
            )
            stage = self.stage.renewed()
            try:
                fresh, used = run_trio(stage.play, twice), run_trio(stage.play, twice)
            finally:
                stage.close()
            played += [self.played("twice, fresh", twice, fresh), self.played("twice, used", twice, used)]
        return _merged(played)

    def concurrent(self, requests: Sequence[Request], way: str, **more: Setting) -> Played:
        """All requests at once."""
        schedule = Schedule(ops=tuple(map(Submit, requests)), settings={**self.settings, **more})
        trace = self.fresh(schedule)
        return msgspec.structs.replace(self.played(way, schedule, trace), together=_together(trace))


def _together(trace: Trace) -> int:
    """As many requests as held a slot at once."""
    most, holding = 0, set()
    for event in trace:
        if isinstance(event, Admitted):
            holding.add(event.submission)
            most = max(most, len(holding))
        elif isinstance(event, Freed | Preempted):
            holding.discard(event.submission)
    return most


def _drift(ours: Emitted, theirs: Emitted) -> tuple[bool, float]:
    """Whether two tokens are not the same to the bit, and by how much their logits differ."""
    if ours.logits is None or theirs.logits is None:
        return ours.token != theirs.token, 0.0
    if ours.logits.shape != theirs.logits.shape:
        return True, float("inf")
    differs = ours.token != theirs.token or not ours.logits.equal(theirs.logits)
    return differs, float((ours.logits.double() - theirs.logits.double()).abs().max())


def _merged(played: Sequence[Played]) -> list[Played]:
    """One line for each way: sums, and the worst of the verdicts."""
    merged = []
    for way in dict.fromkeys(each.way for each in played):
        mine = [each for each in played if each.way == way]
        merged.append(
            msgspec.structs.replace(
                mine[0],
                requests=sum(each.requests for each in mine),
                tokens=sum(each.tokens for each in mine),
                drifted=sum(each.drifted for each in mine),
                largest=max(each.largest for each in mine),
                missing=sum(each.missing for each in mine),
                verdict=max(Verdict[each.verdict] for each in mine).name,
                findings=tuple(finding for each in mine for finding in each.findings),
            )
        )
    return merged
