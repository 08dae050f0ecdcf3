"""Follow up: from a finding to a failure: where it began, shrunk for that cause, judged once more with every experiment.

The *signature* is kind, check and site, the cause by name; where no site is known, kind, check and what happens in the
minimal schedule. Shrinking keeps the site as it keeps the kind: of two bugs in one schedule each is shrunk for its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from fuzz.history import least_history
from fuzz.judge import Judge, Judgement
from fuzz.locate import ATTENDED, locate
from fuzz.mechanisms import mechanisms
from fuzz.shrink import shrink
from oracle.diagnose import diagnose
from oracle.finding import Finding
from oracle.where import account_site
from targets.protocol import CheckName, Kind, Schedule, Setting, Submit, Trace, digest, in_full, submissions

INCIDENTAL = frozenset({"identical_prompt", "leave_while_decoding", "longest_leaves_first", "queued", "rows_named", "wait"})
"""Mechanisms that hardly a minimal schedule is without, or that stand in for another: no part of a signature."""
_BY_OTHERS = (Kind.LEAK, Kind.INTERFERENCE)
"""Kinds that a request alone can't show."""


@dataclass(frozen=True)
class Failure:
    """One finding, shrunk.

    Attributes:
        signature: One bug, one signature.
        site: Where it began, by name; empty where that is not known.
        first: The finding as it was before shrinking.
        trace_digest: Of the minimal schedule's trace, so that a replay can be compared bit for bit.
        found_after, found_after_s: Schedules until the first one that showed it, itself included; seconds likewise.
        shrink_s: Seconds that its shrinking took.
    """

    signature: str
    site: str
    schedule: Schedule
    first: Finding
    finding: Finding
    evaluations: int
    minimal: bool
    trace_digest: str
    found_after: int
    found_after_s: float
    shrink_s: float = 0.0

    def is_like(self, other: Failure) -> bool:
        """Whether two failures are one bug: what several checks say of one minimal schedule is evidence, not another bug."""
        ours, theirs = ((one.schedule, one.finding.kind, one.site) for one in (self, other))
        return ours == theirs or self.signature == other.signature


@dataclass(frozen=True)
class Found:
    """Where and when a finding was made: the schedule as it was drawn; schedules until then, and seconds."""

    schedule: Schedule
    after: int
    after_s: float


@dataclass(frozen=True)
class Examined:
    """A small schedule's failure with every experiment made; the fields are those of `Failure`."""

    signature: str
    finding: Finding
    trace_digest: str


class FollowUp:
    """Follows up findings of one judge.

    Attributes:
        settings: The run's own, which are no part of the search for something simpler.
        checks: Those of the run.
        clock: Seconds, as the run counts them.
    """

    def __init__(
        self,
        judge: Judge,
        settings: Mapping[str, Setting],
        checks: Collection[CheckName],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.judge = judge
        self.settings = settings
        self.checks = checks
        self.clock = clock

    async def site(self, judgement: Judgement, finding: Finding) -> str:
        """Where a finding began, by name; empty where that can't be told.

        Whatever shows in logits takes another replay in this process; a target that is elsewhere, or that remembers what
        ran before, is not asked for it.
        """
        if finding.kind not in ATTENDED:
            return account_site(finding, judgement.trace)
        if finding.check is CheckName.REPEAT or not self.judge.stage.in_process:
            return ""
        here = await self._located(judgement.schedule, finding, judgement.trace)
        if not here or finding.kind not in _BY_OTHERS or not self.judge.factory.control.forced:
            return here
        alone = await self._located(*_alone(judgement.schedule, finding))
        return "" if here == alone else here  # what is wrong alone departs first, and hides where the others come in

    async def _located(self, schedule: Schedule, finding: Finding, trace: Trace = ()) -> str:
        """The first departure's site; empty where there is none."""
        located = await locate(self.judge.factory, self.judge.reference, schedule, finding, trace)
        return "" if located.where is None else located.where.site

    async def failure(self, finding: Finding, site: str, found: Found) -> Failure | None:
        """The failure that a finding with this site comes down to; None if its minimal schedule passes the second time."""

        async def evaluate(candidate: Schedule) -> Finding | None:
            judgement = await self.judge.look_for(candidate, finding.kind, finding.check)
            return await self._same(judgement, finding, site)

        knobs, started = self.judge.factory.knobs, self.clock()
        history = await least_history(found.schedule, finding, evaluate)
        shrunk = await shrink(history.schedule, history.finding, knobs, self.settings, evaluate)
        evaluations = history.evaluations
        if any(request.continues is not None for request in submissions(shrunk.schedule)):
            whole = in_full(shrunk.schedule, await self.judge.replay(shrunk.schedule))  # what is kept says it all
            evaluations += shrunk.evaluations
            shrunk = await shrink(whole, shrunk.finding, knobs, self.settings, evaluate)
        shrink_s = self.clock() - started
        last = await self.examined(shrunk.schedule, finding, site)
        if last is None:
            return None
        return Failure(
            signature=last.signature,
            site=site,
            schedule=shrunk.schedule,
            first=finding,
            finding=msgspec.structs.replace(last.finding, evidence=(*last.finding.evidence, *history.evidence)),
            evaluations=evaluations + shrunk.evaluations,
            minimal=shrunk.minimal,
            trace_digest=last.trace_digest,
            found_after=found.after,
            found_after_s=found.after_s,
            shrink_s=shrink_s,
        )

    async def examined(self, schedule: Schedule, finding: Finding, site: str) -> Examined | None:
        """All that can be said of a schedule that is small; None where it does not fail like this finding."""
        judgement = await self.judge.judge(schedule, {*self.checks, finding.check}, thorough=True)
        last = await self._same(judgement, finding, site)
        if last is None:
            return None
        fired = mechanisms(schedule, judgement.trace)
        events = " ".join(name for name in sorted(fired) if fired[name] and name not in INCIDENTAL)
        return Examined(
            signature=signature(finding, site or events or "plain"),
            finding=await self._in_full(judgement, last),
            trace_digest=digest(judgement.trace),
        )

    async def _same(self, judgement: Judgement, finding: Finding, site: str) -> Finding | None:
        """A finding of the same kind by the same check that began at the same site."""
        for found in judgement.findings:
            if found.kind is finding.kind and found.check is finding.check and site == await self.site(judgement, found):
                return found
        return None

    async def _in_full(self, judgement: Judgement, finding: Finding) -> Finding:
        """The finding with the evidence of every check and experiment, and the victim's whole isolated answer."""
        confirmed = tuple(
            sentence
            for other in judgement.findings
            if (other.kind, other.submission) == (finding.kind, finding.submission) and other.check is not finding.check
            for sentence in other.evidence
            if sentence not in finding.evidence
        )
        said: tuple[str, ...] = ()
        if finding.check in (CheckName.SURVIVAL, CheckName.PROGRESS):
            said = tuple(f"the target's process: {words}" for words in judgement.last_words)
        evidence = await self.judge.drive(diagnose(judgement.case, finding))
        isolated = finding.isolated
        if finding.answer and not isolated:
            request = submissions(judgement.schedule)[finding.submission or 0]
            if self.judge.alphabet.has_all(request.prompt):
                room = judgement.case.context_tokens_max
                isolated = self.judge.reference(judgement.schedule.settings).greedy(request, room)
        return msgspec.structs.replace(
            finding, isolated=isolated, evidence=(*finding.evidence, *confirmed, *said, *evidence)
        )


def _alone(schedule: Schedule, finding: Finding) -> tuple[Schedule, Finding]:
    """A finding's victim with nobody else and its tokens forced, as a schedule and a finding of it."""
    assert finding.submission is not None, "a leak and an interference have a victim"
    request = msgspec.structs.replace(submissions(schedule)[finding.submission], deadline_s=None, forced=finding.answer)
    lone = msgspec.structs.replace(schedule, ops=(Submit(request),))
    return lone, msgspec.structs.replace(finding, submission=0)


def signature(finding: Finding, cause: str) -> str:
    """The name of a bug: kind, check, and its site or what happens in its minimal schedule."""
    return f"{finding.kind} {finding.check}: {cause}"
