"""Kinds: the experiments that turn a suspect into a finding, or clear it.

1. Swap the content of everybody else: the suspect's bits change -> LEAK.
2. Where some of it came from a cache: the same in float64 with a salt of its own, under which nothing is found there. It
   departs as it was, and not so -> STALE-HIT.
3. Alone in a fresh target, in float64: it departs from the reference -> WRONG-ALONE.
4. The whole schedule in float64, same weights upcast, same tokens forced: it departs -> INTERFERENCE; it does not -> it was
   rounding, and nothing is found.

Where the target's own precision is float64, the last steps need no other. Where it has no float64, or is not stepped, the
experiments are those of `oracle.repeats`. What is WRONG-ALONE departs from the reference whatever its neighbours do, and
would hide that they matter too: so it is also held against its own lone run, and differs from that only by INTERFERENCE.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping

import msgspec
import torch

from oracle.case import Case, lone
from oracle.checks.swap import UNDECIDED, Change, compare, conviction
from oracle.convict import completed, convicted
from oracle.departure import Suspect, departures
from oracle.finding import Report
from oracle.repeats import decide_by_repeats, decide_without_float64
from oracle.sampling import choice
from targets.protocol import (
    Kind,
    Request,
    Schedule,
    Setting,
    Submit,
    Trace,
    emitted_by_submission,
    submissions,
    with_request,
    with_requests,
)


def decide(case: Case, suspect: Suspect) -> Generator[Schedule, Trace, Report]:
    """One suspect: a finding, a refutation, or an honest "unknown"."""
    who = suspect.submission
    others = [other for other in range(len(case.requests)) if other != who]
    evidence = [
        f"reference: token {suspect.position} of request #{who} departs by {suspect.size:.3g}, "
        f"rounding explains {suspect.bound:.3g}"
    ]
    if not case.control.stepped:
        return (yield from decide_by_repeats(case, suspect, evidence))
    if others:
        changed = yield from compare(case, [who], others)
        if not isinstance(changed, Change):
            # What is leaked may be the very tokens that are shared. A prefix cache can make an honest target's bits depend
            # on that too, which is why only a suspect, already beyond rounding, is asked.
            everything = yield from compare(case, [who], others, keep_shared=False)
            changed = everything if isinstance(everything, Change) else changed
        if isinstance(changed, Change):
            found = yield from conviction(case, changed)
            return Report(findings=[completed(case, suspect, found, (*evidence, *found.evidence))])
        outcome = "undecided" if changed is UNDECIDED else "no bit of it changes"
        evidence.append(f"swap: with other requests' tokens exchanged, {outcome}")
    exact = _exact_settings(case)
    if exact is None:
        return (yield from decide_without_float64(case, suspect, evidence))
    if who in case.cached:
        stale = yield from _stale(case, suspect, exact)
        if stale:
            return Report(findings=[convicted(case, suspect, Kind.STALE_HIT, [*evidence, stale])])
    departs = yield from _departs(case, Schedule(ops=(Submit(lone(case.requests[who])),), settings=exact), 0)
    if departs:
        wrong = "alone: in a fresh target, in float64, it departs from the reference as well"
        report = Report(findings=[convicted(case, suspect, Kind.WRONG_ALONE, [*evidence, wrong])])
        if others and case.control.forced:
            changed_by = yield from _beside_against_alone(case, suspect, exact)
            if changed_by is not None:
                report.findings.append(convicted(case, changed_by, Kind.INTERFERENCE, [*evidence, wrong, _OTHERWISE]))
        return report
    evidence.append("alone: in a fresh target, in float64, it equals the reference")
    if not case.reference.exact:
        departs = yield from _departs(case, _forced(case, suspect, exact), who)
        if not departs:
            return Report(refuted=1)
        evidence.append("float64: the same schedule with the same tokens forced departs as well, so it is not rounding")
    return Report(findings=[convicted(case, suspect, Kind.INTERFERENCE, evidence)])


_OTHERWISE = "alone: but not by as much as beside the others, with the same tokens forced"


def _stale(case: Case, suspect: Suspect, settings: dict[str, Setting]) -> Generator[Schedule, Trace, str]:
    """The evidence that what came from a cache is to blame; empty where it is not.

    Both ways in float64 with the same tokens forced: as it was, and with a salt that nobody else has.
    """
    who = suspect.submission
    warm = _forced(case, suspect, settings)
    unheard_of = 1 + max((request.salt or 0 for request in case.requests), default=0)
    cold = with_request(warm, who, msgspec.structs.replace(submissions(warm)[who], salt=unheard_of, sample_of=None))
    if not (yield from _departs(case, warm, who)) or (yield from _departs(case, cold, who)):
        return ""
    return (
        f"warmth: {case.cached[who]} of its tokens came from a cache; in float64 and with the same tokens forced it departs "
        f"from the reference, and with a salt that nobody else has, under which no cache has anything, it does not"
    )


def _beside_against_alone(
    case: Case, suspect: Suspect, settings: dict[str, Setting]
) -> Generator[Schedule, Trace, Suspect | None]:
    """Where a request's logits beside the others are not those of its lone run with the same tokens, in float64."""
    who = suspect.submission
    beside = case.emitted[who]
    if not case.reference.exact:
        every = dataclasses.replace(suspect, position=len(case.answers[who]))
        beside = emitted_by_submission((yield _forced(case, every, settings))).get(who, [])
    request = msgspec.structs.replace(lone(case.requests[who]), forced=case.answers[who])
    trace = yield Schedule(ops=(Submit(request),), settings=settings)
    bound = case.references(settings).bound
    for position, (here, alone) in enumerate(zip(beside, emitted_by_submission(trace).get(0, []), strict=False)):
        if here.logits is None or alone.logits is None or here.logits.shape != alone.logits.shape:
            return None
        size = float((here.logits.double() - alone.logits.double()).abs().max())
        if not size <= bound:
            expected = choice(request, case.answers[who][:position], alone.logits)
            return Suspect(who, position, size, bound, expected, here.token)
    return None


def _exact_settings(case: Case) -> dict[str, Setting] | None:
    """The schedule's settings in float64 with the weights it has; None where that can't be had."""
    settings = dict(case.schedule.settings)
    if case.reference.exact:
        return settings
    if not case.control.float64:
        return None
    return in_float64(settings, case.reference.precision)


def departs_in_float64(case: Case, suspect: Suspect) -> Generator[Schedule, Trace, bool | None]:
    """Whether the schedule departs in float64, with the same tokens forced; None where the target has none.

    A target that computes in float64 already is taken at its word: what is within its bound does not depart.
    """
    exact = _exact_settings(case)
    if exact is None:
        return None
    departs: bool = yield from _departs(case, _forced(case, suspect, exact), suspect.submission)
    return departs


def in_float64(settings: Mapping[str, Setting], precision: str) -> dict[str, Setting]:
    """Settings for float64 with the weights that these have, upcast; `precision` is the dtype's name under them."""
    weights = settings.get("weights", "same")
    exact = {name: value for name, value in settings.items() if name != "kv_dtype"}
    return {**exact, "dtype": "float64", "weights": precision if weights == "same" else weights}


def _forced(case: Case, suspect: Suspect, settings: dict[str, Setting]) -> Schedule:
    """The schedule with every request made to repeat its tokens, the suspect those before its own departure.

    Its token there is the target's choice again, with the noise of that place in its answer if it samples: where a target
    shows no logits, that is all there is to judge.
    """

    def repeat(submission: int, request: Request) -> Request:
        answer = case.answers.get(submission, request.forced)
        chosen = max(suspect.position, len(request.forced)) if submission == suspect.submission else len(answer)
        return msgspec.structs.replace(request, forced=answer[:chosen])

    return msgspec.structs.replace(with_requests(case.schedule, repeat), settings=settings)


def _departs(case: Case, schedule: Schedule, submission: int) -> Generator[Schedule, Trace, bool]:
    """Whether a request of another schedule departs from its reference; a request without tokens does not."""
    trace = yield schedule
    emitted = emitted_by_submission(trace).get(submission, [])
    answers = {submission: tuple(event.token for event in emitted)} if emitted else {}
    rows = [event.logits for event in emitted if event.logits is not None]
    logits = torch.stack(rows) if rows and len(rows) == len(emitted) else None
    suspects = departures(submissions(schedule), answers, logits, case.references(schedule.settings), case.control)
    return any(True for _ in suspects)
