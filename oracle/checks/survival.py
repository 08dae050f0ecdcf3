"""Survival: nothing crashes, and every logit is finite."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch

from oracle.case import Case
from oracle.finding import Finding, Report
from targets.protocol import CheckName, Crashed, Kind, Schedule, Trace


def survival(case: Case) -> Generator[Schedule, Trace, Report]:
    """CRASHED where the target raised, NONFINITE at a request's first NaN or infinite logit. Asks for no variants."""
    return Report(findings=[*_crashes(case), *_nonfinite(case)])
    yield


def _crashes(case: Case) -> Iterator[Finding]:
    for index, event in enumerate(case.trace):
        if isinstance(event, Crashed):
            live = " ".join(f"#{submission}" for submission in event.submissions)
            yield Finding(
                kind=Kind.CRASHED,
                check=CheckName.SURVIVAL,
                what=f"{event.doing} raised {event.error}",
                submission=event.submissions[0] if len(event.submissions) == 1 else None,
                event=index,
                evidence=(f"live requests: {live or 'none'}",),
            )


def _nonfinite(case: Case) -> Iterator[Finding]:
    # A sum is finite only if every addend is; on the way to it half types would overflow.
    if case.logits is not None and case.logits.sum(dtype=torch.float64).isfinite():
        return
    for submission, events in case.emitted.items():
        for position, event in enumerate(events):
            if event.logits is not None and not event.logits.isfinite().all():
                yield Finding(
                    kind=Kind.NONFINITE,
                    check=CheckName.SURVIVAL,
                    what=f"request #{submission} has logits that are not finite at token {position}",
                    submission=submission,
                    position=position,
                )
                break
