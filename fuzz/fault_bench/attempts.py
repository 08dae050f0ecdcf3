"""Attempts: one planted bug, one way to make up schedules, one seed; and what came of it.

Ours are followed up as in a run: shrunk, named, judged once more. Of the other ways only detection is measured, by the same
checks: a failure counts when the judge has it.

Seconds are those of the processor: a trial keeps one busy from beginning to end, and what else the machine does meanwhile is
no property of a way.
"""

from __future__ import annotations

import functools
import time

import msgspec

from fuzz.conductor import run_trio
from fuzz.fault_bench.ways import OURS, WAYS
from fuzz.followup import Failure, Found
from fuzz.judge import Judgement
from fuzz.search import Limits, Search, Tally
from fuzz.shrink import sort_key
from fuzz.stage import InProcess
from oracle.finding import Finding
from targets.decoder import DecoderFactory
from targets.faults import FAULTS, Fault, Probe
from targets.models import find_model
from targets.protocol import Kind, Setting, submissions

FLOAT64 = "float64"


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="trial", omit_defaults=True):
    """What is tried: until the first rightful failure, or until seconds or schedules have run out."""

    fault: str
    way: str = OURS
    seed: int = 0
    seconds: float | None = None
    schedules: int | None = None
    dtype: str = FLOAT64


class Trial(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """What came of a task.

    Attributes:
        judged, judged_s: Schedules that were judged, and seconds from the first to the last, shrinking included.
        reached, triggered: Schedules until the changed code ran, and until it made a difference; None if it never did.
        found, found_s: Schedules and seconds until the first rightful failure; None if there was none.
        kind, check, site: What it came out as.
        kind_first: What it was called before it was shrunk.
        right_first, right: Whether every failure up to there had a kind that the fault declares, before it was shrunk and
            after; a minimal schedule that passed when it was judged again is none.
        source_right: Whether the neighbour that is named is the one whose content came across. Known without any swap where
            the minimal schedule has two requests, for then it is the other one; None where it has more, or is no leak.
        wrong: Signatures of other failures on the way: a kind or a check that the fault does not declare.
        evaluations, shrink_s, minimal: What shrinking took, and whether nothing more can be taken away.
        requests, tokens: Size of the minimal schedule, and over the smallest known one of that kind.
    """

    task: Task
    judged: int
    judged_s: float
    reached: int | None = None
    triggered: int | None = None
    found: int | None = None
    found_s: float | None = None
    kind: str = ""
    check: str = ""
    site: str = ""
    kind_first: str = ""
    right_first: bool = False
    right: bool = False
    source_right: bool | None = None
    wrong: tuple[str, ...] = ()
    evaluations: int = 0
    shrink_s: float = 0.0
    minimal: bool = False
    requests: int = 0
    tokens: int = 0
    requests_over: int = 0
    tokens_over: int = 0

    @property
    def is_near(self) -> bool:
        """Whether the minimal schedule is within one request and two tokens of the smallest known."""
        return self.found is not None and self.requests_over <= 1 and self.tokens_over <= 2


class Noting(Search):
    """A search that takes a note of what it finds, and does not follow it up."""

    async def follow_up(self, judgement: Judgement, finding: Finding, found: Found) -> None:
        """Notes a finding as it is."""
        self.tally.failures.append(
            Failure(
                signature=f"{finding.kind} {finding.check}",
                site="",
                schedule=judgement.schedule,
                first=finding,
                finding=finding,
                evaluations=0,
                minimal=False,
                trace_digest="",
                found_after=found.after,
                found_after_s=found.after_s,
            )
        )


def attempt(task: Task) -> Trial:
    """Does what the task says."""
    fault, probe, way = FAULTS[task.fault], Probe(), WAYS[task.way]
    first: dict[str, int] = {}

    def watch(tally: Tally) -> None:
        for what in ("reached", "changed"):
            if getattr(probe, what):
                first.setdefault(what, tally.schedules)

    factory = planted(fault, probe)
    search = (Search if task.way == OURS else Noting)(
        factory,
        task.seed,
        Limits(schedules=task.schedules, seconds=task.seconds),
        settings_of(fault, task.dtype),
        on_schedule=watch,
        checks=way.checks,
        stage=stage_of(factory),
        draw=way.draw,
        clock=time.process_time,
    )
    search.enough = functools.partial(is_rightful, fault)
    made = trial_of(task, run_trio(search.run))
    return msgspec.structs.replace(made, reached=first.get("reached"), triggered=first.get("changed"))


def planted(fault: Fault, probe: Probe) -> DecoderFactory:
    """A factory of targets with this fault, or, with an honest probe, its twin."""
    return DecoderFactory(find_model(fault.models[0]), fault.plant(probe=probe), fault.targets[0])


def settings_of(fault: Fault, dtype: str = FLOAT64) -> dict[str, Setting]:
    """What must be set for the fault to show, in this dtype."""
    return dict(fault.settings) if dtype == FLOAT64 else {**fault.settings, "dtype": dtype}


def stage_of(factory: DecoderFactory) -> InProcess:
    """Where a factory's targets are played; where a fresh network is asked for, others of the same model and parts."""
    return InProcess(factory, lambda: DecoderFactory(factory.model, factory.parts, factory.name))


def is_rightful(fault: Fault, failure: Failure) -> bool:
    """Whether a failure is what may rightly come of a fault; anything else is a miss."""
    return failure.finding.kind in fault.kinds and failure.finding.check in fault.checks


def trial_of(task: Task, tally: Tally) -> Trial:
    """What a search that ended with the first rightful failure says of a fault."""
    fault, wrong = FAULTS[task.fault], []
    kinds: list[tuple[Kind, Kind]] = []
    for failure in tally.failures:
        finding = failure.finding
        kinds.append((failure.first.kind, finding.kind))
        if not is_rightful(fault, failure):
            wrong.append(failure.signature)
            continue
        size, known = sort_key(failure.schedule), sort_key(fault.smallest[finding.kind])
        return Trial(
            task=task,
            judged=tally.schedules,
            judged_s=tally.seconds,
            found=failure.found_after,
            found_s=failure.found_after_s,
            kind=finding.kind,
            check=finding.check,
            site=failure.site,
            kind_first=failure.first.kind,
            right_first=all(first in fault.kinds for first, _ in kinds),
            right=all(last in fault.kinds for _, last in kinds) and not tally.unstable,
            source_right=_source_right(failure),
            wrong=tuple(wrong),
            evaluations=failure.evaluations,
            shrink_s=failure.shrink_s,
            minimal=failure.minimal,
            requests=size[0],
            tokens=size[1],
            requests_over=size[0] - known[0],
            tokens_over=size[1] - known[1],
        )
    return Trial(task=task, judged=tally.schedules, judged_s=tally.seconds, wrong=tuple(wrong))


def _source_right(failure: Failure) -> bool | None:
    """Whether the only neighbour there is is the one that is named; None where there are several, or nothing leaked."""
    finding = failure.finding
    if finding.kind is not Kind.LEAK or len(submissions(failure.schedule)) != 2:
        return None
    return {finding.submission, *finding.sources} == {0, 1} and len(finding.sources) == 1
