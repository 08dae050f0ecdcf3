"""Diagnose: what else can be learnt of a failure by experiment, each outcome a sentence of evidence.

Every experiment is one that the reader would otherwise make by hand: the victim alone, twice in one target, one request a
step, the same schedule on a fresh target and on a used one. None of them decides the kind (`oracle.kinds` has); they say
where to look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

import msgspec

from oracle.case import Accounted, Anew, Ask, Case, Used
from oracle.checks import CHECKS
from oracle.checks.repeat import departure
from oracle.finding import Finding
from targets.protocol import (
    CheckName,
    Kind,
    Op,
    Schedule,
    Step,
    Submit,
    Trace,
    Wait,
    emitted_by_submission,
    submissions,
)
from targets.protocol.events import same_bits

_ROUNDS_MAX = 400
"""Steps for each request that a serialised schedule makes at most."""


def diagnose(case: Case, finding: Finding) -> Generator[Ask, Trace, tuple[str, ...]]:
    """The evidence that further experiments give on a finding, for a case whose schedule is small."""
    evidence: list[str] = []
    # Of a crash each replay may cost a process; of a target that is not stepped no two replays need have the same bits.
    about_bits = finding.kind not in (Kind.CRASHED, Kind.STALLED) and case.control.stepped
    if about_bits and finding.check is not CheckName.REPEAT:
        evidence += yield from _fresh_and_used(case)
    victim, count = finding.submission, len(case.requests)
    if victim is not None:
        lone = Schedule(
            ops=(Submit(msgspec.structs.replace(case.requests[victim], sample_of=None)),), settings=case.schedule.settings
        )
        if count > 1:
            shows = yield from _shows(case, lone, finding)
            evidence.append("alone: with nobody else " + ("it goes wrong in the same way" if shows else "nothing is wrong"))
        if about_bits:
            evidence += yield from _twice(lone)
    if count > 1 and case.control.rows:
        shows = yield from _shows(case, serialised(case.schedule), finding)
        evidence.append(
            "serialised: with one request a step it goes wrong in the same way, so the state is shared over time"
            if shows
            else "serialised: with one request a step it is gone, so it takes a step together: a race, or the batch"
        )
    return tuple(evidence)


def serialised(schedule: Schedule) -> Schedule:
    """The same with one request a step: every step becomes a turn of steps, one for each request handed in so far.

    Without deadlines, which would come too soon.
    """
    ops: list[Op] = []
    count = 0

    def turns(rounds: int, rows: tuple[int, ...] | None) -> list[Op]:
        named = range(count) if rows is None else rows
        return [Step(1, (row,)) for _ in range(min(rounds, _ROUNDS_MAX)) for row in named]

    for op in schedule.ops:
        if isinstance(op, Submit):
            count += 1
            ops.append(Submit(msgspec.structs.replace(op.request, deadline_s=None)))
        elif isinstance(op, Step):
            ops += turns(op.count, op.rows)
        elif isinstance(op, Wait):
            ops += turns(op.tokens, None)
        else:
            ops.append(op)
    left = sum(request.max_new_tokens for request in submissions(schedule)) + count
    return msgspec.structs.replace(schedule, ops=(*ops, *turns(left, None)))


def _fresh_and_used(case: Case) -> Generator[Ask, Trace, list[str]]:
    """Whether the bits stand on a fresh target, and on a used one."""
    fresh = yield Anew(case.schedule)
    used = yield Used(case.schedule)
    changed = departure(case.trace, fresh), departure(fresh, used)
    return [
        f"{name}: played {where}, " + ("the bits are the same" if what is None else f"it differs at {what}")
        for name, where, what in zip(
            ("fresh", "used"), ("where nothing had run before", "once more where it had just run"), changed, strict=True
        )
    ]


def _shows(case: Case, schedule: Schedule, finding: Finding) -> Generator[Ask, Trace, bool]:
    """Whether another schedule goes wrong in the same way: a finding of the same kind by the same check."""
    trace = yield Accounted(schedule)
    other = dataclasses.replace(case, schedule=schedule, trace=trace, thorough=False)
    first = CheckName.ISOLATION if finding.check in (CheckName.SWAP, CheckName.WARMTH) else finding.check
    for name, thorough in {first: False, finding.check: True}.items():
        report = yield from CHECKS[name](dataclasses.replace(other, thorough=thorough))
        if any(found.kind is finding.kind and found.check is finding.check for found in report.findings):
            return True
    return False


def _twice(lone: Schedule) -> Generator[Ask, Trace, list[str]]:
    """Whether one request, alone, is answered otherwise when it comes back to the same target."""
    (request,) = submissions(lone)
    wait = Wait(0, request.max_new_tokens + 1)  # more than it can get: until it has ended
    trace = yield msgspec.structs.replace(lone, ops=(Submit(request), wait, Submit(request)))
    emitted = emitted_by_submission(trace)
    first, again = emitted.get(0, []), emitted.get(1, [])
    same = len(first) == len(again) and all(map(same_bits, first, again))
    return ["again: alone and asked twice of one target, it is answered " + ("with the same bits" if same else "otherwise")]
