"""Repeat: the same schedule twice where nothing has run before, and once more where it has just run.

Other bits in the two fresh runs: the target is unstable, and nothing can be said of it. The same bits there and others in
the used one: what ran before is not gone, a leak from the past. The difference matters: the second has a cause that can be
found, and is often taken for the first.
"""

from __future__ import annotations

from collections.abc import Generator

from oracle.case import Anew, Ask, Case, Used
from oracle.finding import Finding, Report
from targets.protocol import ACCOUNTS, CheckName, Kind, Trace, emitted_by_submission, first_departure
from targets.protocol.events import same_bits


def repeat(case: Case) -> Generator[Ask, Trace, Report]:
    """LEAK where a fresh target and a used one differ. A case that is not thorough first looks whether anything differs."""
    if not case.thorough and departure(case.trace, (yield case.schedule)) is None:
        return Report()
    fresh = yield Anew(case.schedule)
    used = yield Used(case.schedule)
    another = yield Anew(case.schedule)
    unstable = departure(fresh, another)
    if unstable is not None:
        return Report(unstable=[f"two fresh targets differ at {unstable}"])
    changed = departure(fresh, used)
    if changed is None:
        if case.thorough:
            return Report()
        return Report(unstable=["a replay differs, but not for a fresh target's having played the same schedule before"])
    submission, position = _first_change(fresh, used)
    return Report(
        findings=[
            Finding(
                kind=Kind.LEAK,
                check=CheckName.REPEAT,
                what=f"{'what happens' if submission is None else f'request #{submission}'} depends on what ran before",
                submission=submission,
                position=position,
                answer=() if submission is None else tuple(event.token for event in emitted_by_submission(used)[submission]),
                evidence=(
                    "fresh: played twice where nothing had run before, the bits are the same",
                    f"used: played once more where it had just run, they differ at {changed}",
                ),
            )
        ]
    )


def departure(a: Trace, b: Trace) -> str | None:
    """Where two traces first differ, accounts left out; None if they are the same bit for bit."""
    return first_departure(*(tuple(event for event in trace if not isinstance(event, ACCOUNTS)) for trace in (a, b)))


def _first_change(a: Trace, b: Trace) -> tuple[int | None, int | None]:
    """The first submission, and the index into its answer, whose bits differ; (None, None) where only events do."""
    theirs = emitted_by_submission(b)
    for submission, events in emitted_by_submission(a).items():
        for position, (left, right) in enumerate(zip(events, theirs.get(submission, []), strict=False)):
            if not same_bits(left, right):
                return submission, position
    return None, None
