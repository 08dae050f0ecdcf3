"""Residue: a request's bits survive another filling of every cell that holds nothing of a live request.

The same schedule is replayed with freed, never written and padding cells *poisoned*: set to a finite constant at the scale
of the data. In the schedule itself they hold what chance and earlier owners left, so that one replay compares two fillings.
Exact: no tolerance, on any dtype. It needs equal skeletons; where they depart before any bit does, the pair is undecided.
Before it convicts, the schedule is replayed once more as it is: a target whose bits move by themselves is undecided too.

It asks only under `sanitize`, and only targets that have a poison. NaN would show more, but attention multiplies the cells
that its mask hides by zero, and zero times NaN is NaN: only a target that promises never to gather such cells is asked it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import msgspec

from oracle.case import Case
from oracle.checks.swap import UNDECIDED, first_change
from oracle.finding import Finding, Report
from targets.protocol import CheckName, Kind, Schedule, Setting, Trace

SANITIZE, POISON = "sanitize", "poison"
FINITE = ("low", "high")
ASKED_OF, ASKED_EVERY = 3, 4
"""Three schedules in four, by chance: a replay more for each is 45% of what judging one takes, and this leaves 34%."""


def residue(case: Case) -> Generator[Schedule, Trace, Report]:
    """LEAK where a request's bits change. One of the poisons, by chance, in most schedules; all if the case is thorough."""
    report = Report()
    if not (case.control.poison and case.schedule.settings.get(SANITIZE)):
        return report
    if not case.thorough and case.random.randrange(ASKED_EVERY) >= ASKED_OF:
        return report
    everyone = range(len(case.requests))
    for poison in _poisons(case):
        changed = first_change(case.trace, (yield _variant(case, {POISON: poison})), everyone)
        if isinstance(changed, tuple) and first_change(case.trace, (yield _variant(case, {})), everyone) is not None:
            changed = UNDECIDED  # its bits move though nothing was changed
        report.poisoned += changed is not UNDECIDED
        report.poisoned_undecided += changed is UNDECIDED
        if isinstance(changed, tuple):
            report.findings.append(_finding(case, poison, *changed))
            break
    return report


def _variant(case: Case, settings: dict[str, Setting]) -> Schedule:
    """The schedule with other settings, and without the tags: it is compared by its bits alone."""
    return msgspec.structs.replace(case.schedule, settings={**case.schedule.settings, SANITIZE: False, **settings})


def _poisons(case: Case) -> Iterator[str]:
    """Those of the schedule's own settings left out: they would change nothing."""
    known = [*FINITE, *(["nan"] if case.control.poison_nan else [])]
    others = [name for name in known if name != case.schedule.settings.get(POISON)]
    yield from others if case.thorough else [case.random.choice(others)]


def _finding(case: Case, poison: str, submission: int, position: int) -> Finding:
    return Finding(
        kind=Kind.LEAK,
        check=CheckName.RESIDUE,
        what=f"request #{submission} depends on what lies in cells that hold nothing of its own",
        submission=submission,
        position=position,
        actual=case.answers[submission][position],
        answer=case.answers[submission],
        evidence=(
            f"residue: with freed, unwritten and padding cells filled with the {poison} poison and everything else equal, "
            f"the bits of token {position} of request #{submission} change; replayed as it was, they do not",
        ),
    )
