"""Isolation: every request's logits, or its tokens, against its reference alone.

Beyond the rounding bound a request is a suspect. Experiments then decide what it is (`oracle.kinds`).
"""

from __future__ import annotations

from collections.abc import Generator

from oracle.case import Case
from oracle.departure import departures
from oracle.finding import Report
from oracle.kinds import decide
from targets.protocol import Schedule, Trace


def isolation(case: Case) -> Generator[Schedule, Trace, Report]:
    """LEAK, WRONG-ALONE or INTERFERENCE for the first request that departs; a refuted suspect makes room for the next."""
    report = Report()
    answers = {submission: case.answers[submission] for submission in case.sound}
    for suspect in departures(case.requests, answers, case.logits, case.reference):
        report.suspects += 1
        report.add((yield from decide(case, suspect)))
        if report.findings:
            break
    return report
