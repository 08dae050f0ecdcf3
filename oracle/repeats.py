"""Repeats: what a suspect is, where the target has no float64 to ask, or where no two replays of a schedule are the same.

A suspect is decided only where it is far beyond rounding: another engine's kernels round otherwise than the reference, and
nothing here can tell a routing flip from a bug. Then the engine itself, fresh and with this request alone, is the second
reference: it departs there too (WRONG-ALONE), or it does not (INTERFERENCE).

On a target that is *not stepped* the same schedule takes another course each time. There a departure counts only if it shows
in every one of several repeats, and a change under the swap only where all repeats agree among themselves and every swapped
one differs from all of them; else the suspect stays undecided, and says how often it showed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec
import torch

from oracle.case import Case, lone, told
from oracle.checks.swap import endless, swapped
from oracle.convict import completed, convicted
from oracle.departure import Suspect, departures
from oracle.finding import Finding, Report
from targets.protocol import CheckName, Emitted, Kind, Schedule, Submit, Trace, emitted_by_submission, submissions

DECISIVE = 4.0
"""So many times what rounding explains."""
DECISIVE_MIN = 1e-3
"""And no less than so much of a logit, however little the reference's own rounding is."""
REPEATS = 5
Stream = Sequence[Emitted]


def decide_without_float64(case: Case, suspect: Suspect, evidence: list[str]) -> Generator[Schedule, Trace, Report]:
    """One suspect of a stepped target that no swap convicts."""
    who = suspect.submission
    if not _is_decisive(suspect):
        return _unknown(suspect, "which is too near to rounding, and the target has no float64 to ask")
    alone = yield from _alone(case, suspect)
    if alone is not None:
        wrong = f"alone: the target itself, fresh and with nobody else, departs by {alone.size:.3g} as well"
        return Report(findings=[convicted(case, suspect, Kind.WRONG_ALONE, [*evidence, wrong])])
    right = "alone: the target itself, fresh and with nobody else, gives what the reference gives"
    return Report(findings=[convicted(case, suspect, Kind.INTERFERENCE, [*evidence, right, _cached(case, who)])])


def decide_by_repeats(case: Case, suspect: Suspect, evidence: list[str]) -> Generator[Schedule, Trace, Report]:
    """One suspect of a target that is not stepped."""
    who = suspect.submission
    if not _is_decisive(suspect):
        return _unknown(suspect, "which is too near to rounding for a target that decides by itself when it does what")
    alone = yield from _alone(case, suspect)
    if alone is not None:
        wrong = f"alone: the target itself, fresh and with nobody else, departs by {alone.size:.3g} as well"
        return Report(findings=[convicted(case, suspect, Kind.WRONG_ALONE, [*evidence, wrong])])
    evidence = [*evidence, "alone: the target itself, fresh and with nobody else, gives what the reference gives"]
    shown, streams = 0, []
    for _ in range(REPEATS):
        trace = yield case.schedule
        found = _departure(case, case.schedule, trace, who)
        shown += found is not None and _is_decisive(found)
        streams.append(emitted_by_submission(trace).get(who, []))
    if shown < REPEATS:
        return _unknown(suspect, f"and in {shown} of {REPEATS} repeats of the same schedule")
    evidence.append(f"repeats: it departs in {shown} of {REPEATS} repeats of the same schedule")
    leak = yield from _leak(case, suspect, evidence)
    if leak is not None:
        return Report(findings=[leak])
    return Report(findings=[convicted(case, suspect, Kind.INTERFERENCE, [*evidence, _cached(case, who)])])


def _is_decisive(suspect: Suspect) -> bool:
    return not suspect.size <= max(DECISIVE * suspect.bound, DECISIVE_MIN)


def _unknown(suspect: Suspect, why: str) -> Report:
    return Report(unknown=[f"request #{suspect.submission} departs by {suspect.size:.3g}, {why}"])


def _cached(case: Case, who: int) -> str:
    return f"cache: {case.cached.get(who, 0)} of its tokens came from a cache"


def _alone(case: Case, suspect: Suspect) -> Generator[Schedule, Trace, Suspect | None]:
    """Where the request departs from its reference when a fresh target has nobody else; None where it does not."""
    schedule = Schedule(ops=(Submit(lone(case.requests[suspect.submission])),), settings=case.schedule.settings)
    return _departure(case, schedule, (yield schedule), 0)


def _departure(case: Case, schedule: Schedule, trace: Trace, who: int) -> Suspect | None:
    """Where a request of a trace departs from its reference; None where it does not, or has no tokens."""
    emitted = emitted_by_submission(trace).get(who, [])
    if not emitted:
        return None
    rows = [event.logits for event in emitted if event.logits is not None]
    logits = torch.stack(rows) if len(rows) == len(emitted) else None
    answers = {who: tuple(event.token for event in emitted)}
    likely = told({who: emitted}) if case.control.told else None
    requests = submissions(schedule)
    return next(departures(requests, answers, logits, case.reference, case.control, likely), None)


def _leak(case: Case, suspect: Suspect, evidence: list[str]) -> Generator[Schedule, Trace, Finding | None]:
    """LEAK where the request's answer follows the others' content in every repeat; None where that can't be told."""
    who = suspect.submission
    others = [other for other in range(len(case.requests)) if other != who]
    if not others:
        return None
    plain, changed = endless(case, others), swapped(case, [who], others, keep_shared=False)
    before: list[Stream] = []
    after: list[Stream] = []
    for schedule, streams in ((plain, before), (changed, after)):
        for _ in range(REPEATS):
            streams.append(emitted_by_submission((yield schedule)).get(who, []))
    tokens = {tuple(event.token for event in stream) for stream in before}
    spread = max(_distance(one, other) for one in before for other in before)
    if len(tokens) > 1 or not all(
        _distance(one, other) > max(spread, DECISIVE * suspect.bound) for one in before for other in after
    ):
        return None
    swap = f"swap: with other requests' tokens exchanged it answers otherwise, in {REPEATS} of {REPEATS} repeats"
    found = Finding(
        kind=Kind.LEAK, check=CheckName.ISOLATION, what=f"request #{who} depends on what others asked", submission=who
    )
    return msgspec.structs.replace(completed(case, suspect, found, (*evidence, swap)), kind=Kind.LEAK)


def _distance(one: Stream, other: Stream) -> float:
    """How far two streams of one request are apart: without end where a token differs, else by log-probability."""
    worst = 0.0
    for ours, theirs in zip(one, other, strict=False):
        if ours.token != theirs.token:
            return float("inf")
        for (_, likely), (_, otherwise) in zip(ours.logprobs[:1], theirs.logprobs[:1], strict=False):
            worst = max(worst, abs(likely - otherwise))
    return worst if len(one) == len(other) else float("inf")
