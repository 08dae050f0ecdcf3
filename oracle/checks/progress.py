"""Progress: some request advances within a few steps, and every request ends."""

from __future__ import annotations

from collections.abc import Generator

from oracle.case import Case
from oracle.finding import Finding, Report
from targets.protocol import CheckName, Kind, Schedule, Stalled, Trace


def progress(case: Case) -> Generator[Schedule, Trace, Report]:
    """STALLED where the conductor had to give up. Asks for no variants."""
    report = Report()
    for index, event in enumerate(case.trace):
        if isinstance(event, Stalled):
            who = " ".join(f"#{submission}" for submission in event.submissions)
            if event.doing:
                what = f"{event.doing} never came back" + (f", and {who} never ended" if who else "")
            elif event.steps:
                what = f"{who} never ended: nothing happened in {event.steps} steps"
            else:
                what = f"{who} never ended: more tokens came than were asked for"
            report.findings.append(
                Finding(
                    kind=Kind.STALLED,
                    check=CheckName.PROGRESS,
                    what=what,
                    submission=event.submissions[0] if event.submissions else None,
                    event=index,
                )
            )
    return report
    yield
