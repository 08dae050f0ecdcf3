"""Isolation: every request's logits, or its tokens, against its reference alone.

Beyond the rounding bound a request is a suspect. Experiments then decide what it is (`oracle.kinds`).
"""

from __future__ import annotations

import math
from collections.abc import Generator

from oracle.case import Case
from oracle.departure import Suspect, departures
from oracle.finding import Report
from oracle.kinds import decide
from targets.protocol import Schedule, Trace

CONVICTED_MAX = 3
"""So many requests of one schedule are convicted; the others would hardly tell more."""


def isolation(case: Case) -> Generator[Schedule, Trace, Report]:
    """LEAK, WRONG-ALONE or INTERFERENCE for the first requests that depart; a refuted suspect makes room for the next.

    More than one, because two bugs may meet in one schedule, and the one that always shows must not hide the other.
    """
    report, convicted = Report(), 0
    answers = {submission: case.answers[submission] for submission in case.sound}
    for suspect in departures(case.requests, answers, case.logits, case.reference, case.control, case.told):
        if not _is_finite(case, suspect):
            continue  # NONFINITE, which survival reports; no experiment on numbers can say more
        report.suspects += 1
        decided = yield from decide(case, suspect)
        report.add(decided)
        convicted += bool(decided.findings)
        if convicted == CONVICTED_MAX:
            break
    return report


def _is_finite(case: Case, suspect: Suspect) -> bool:
    """Whether the target's logits behind a suspect's token are numbers; those it does not show are."""
    event = case.emitted[suspect.submission][suspect.position]
    if event.logits is None:
        return not any(math.isnan(value) for _, value in event.logprobs)
    return bool(event.logits.isfinite().all())
