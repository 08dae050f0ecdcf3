"""Narrowing: from a long schedule to a short one in which something is still amiss; the usual shrinker does the rest.

One replay, on which only those checks look that ask for none, says what a schedule is *nominated* for: a request beyond the
rounding bound, a piece lost, a slot with two owners. No experiment is made before the schedule is short: of a thousand
requests each would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fuzz.edits import with_ops
from fuzz.judge import Judge
from oracle.case import Case
from oracle.departure import Suspect, departures
from targets.protocol import Asked, Cancel, CheckName, Emitted, Op, Schedule, Submit, Trace, Wait, submissions

LOOKING = (CheckName.SURVIVAL, CheckName.BOOKKEEPING, CheckName.ECHO, CheckName.OWNERSHIP, CheckName.PROGRESS)
"""Checks that ask for no replays."""
FEW = 5
"""So few requests are left to the shrinker."""
EVALUATIONS_MAX = 120


class Narrower:
    """Narrows one schedule.

    Attributes:
        evaluations: Replays so far.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.evaluations = 0

    async def nominations(self, schedule: Schedule) -> dict[CheckName, int]:
        """What a schedule is nominated for, each with the op by which it shows."""
        self.evaluations += 1
        trace = await self.judge.replay(schedule)
        case = self.judge.case(schedule, trace)
        found: dict[CheckName, int] = {}
        judgement = await self.judge.ask(case, LOOKING)
        for finding in judgement.findings:
            event = len(trace) if finding.event is None else finding.event
            found.setdefault(finding.check, _op_of(trace, event))
        suspect = next(suspects(case), None)
        if suspect is not None:
            found[CheckName.ISOLATION] = _op_of(trace, _emission(trace, suspect.submission, suspect.position))
        return found

    async def narrow(self, schedule: Schedule, check: CheckName, op: int) -> Schedule:
        """A schedule of fewer requests that is nominated for the same check."""
        schedule = await self._take(schedule, check, [with_ops(schedule, list(schedule.ops[: op + 1]))])
        parts = 2
        while len(submissions(schedule)) > FEW and self.evaluations < EVALUATIONS_MAX:
            smaller = await self._take(schedule, check, _without_parts(schedule, parts))
            if smaller is not schedule:
                schedule, parts = smaller, max(parts - 1, 2)
            elif parts >= len(submissions(schedule)):
                break
            else:
                parts = min(2 * parts, len(submissions(schedule)))
        return schedule

    async def _take(self, schedule: Schedule, check: CheckName, candidates: list[Schedule]) -> Schedule:
        """The first candidate that is nominated for the check, up to the op by which it shows; else the schedule."""
        for candidate in candidates:
            if self.evaluations >= EVALUATIONS_MAX:
                break
            if not submissions(candidate) or candidate.ops == schedule.ops:
                continue
            op = (await self.nominations(candidate)).get(check)
            if op is not None:
                return with_ops(candidate, list(candidate.ops[: op + 1]))
        return schedule


def suspects(case: Case) -> Iterator[Suspect]:
    """Requests beyond the rounding bound, as isolation looks for them."""
    answers = {submission: case.answers[submission] for submission in case.sound}
    return departures(case.requests, answers, case.logits, case.reference, case.control)


def _without_parts(schedule: Schedule, parts: int) -> list[Schedule]:
    """Without one of so many parts of the requests, the earliest first: history is what is needed least."""
    count = len(submissions(schedule))
    edges = [count * part // parts for part in range(parts + 1)]
    return [kept(schedule, set(range(count)) - set(range(edges[part], edges[part + 1]))) for part in range(parts)]


def kept(schedule: Schedule, these: set[int]) -> Schedule:
    """Only these submissions, renumbered, in one go: `fuzz.edits.keep_requests` for many of them."""
    places = {submission: place for place, submission in enumerate(sorted(these))}
    ops: list[Op] = []
    submission = -1
    for op in schedule.ops:
        if isinstance(op, Submit):
            submission += 1
            if submission in places:
                of = op.request.sample_of
                sibling = None if of is None else places.get(of)
                ops.append(op if of == sibling else Submit(msgspec.structs.replace(op.request, sample_of=sibling)))
        elif isinstance(op, Cancel | Wait):
            if op.submission in places:
                ops.append(msgspec.structs.replace(op, submission=places[op.submission]))
        else:
            ops.append(op)
    return with_ops(schedule, ops)


def _op_of(trace: Trace, event: int) -> int:
    """The op under which an event came."""
    return max((asked.op for asked in trace[: event + 1] if isinstance(asked, Asked)), default=0)


def _emission(trace: Trace, submission: int, position: int) -> int:
    """The event with which a token of an answer came."""
    places = [index for index, event in enumerate(trace) if isinstance(event, Emitted) and event.submission == submission]
    return places[position]
