"""Dispute: an answer that is not the isolated one, and no finding. Is it rounding? By experiment, whatever the bounds say.

The usual story: prefix pages are recycled under pressure, in bfloat16 somebody's output differs from a run alone, a leak is
reported, and somebody else says that it is rounding. Each side can be right, and neither can tell by looking at tokens.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from oracle.case import Case
from oracle.checks.residue import FINITE, POISON
from oracle.checks.swap import UNDECIDED, Change, compare, first_change
from oracle.departure import Suspect
from oracle.kinds import departs_in_float64
from targets.protocol import Schedule, Trace


def dispute(case: Case, who: int) -> Generator[Schedule, Trace, tuple[str, ...]]:
    """The evidence on one request's answer, a sentence each, the verdict last; empty where it is the isolated one."""
    answer = case.answers.get(who, ())
    isolated = case.reference.greedy(case.requests[who], case.context_tokens_max)
    pairs = enumerate(zip(answer, isolated, strict=False))
    position = next((index for index, (ours, theirs) in pairs if ours != theirs), None)
    if position is None:
        return ()
    suspect = Suspect(who, position, 0.0, case.reference.bound, isolated[position], answer[position])
    evidence = [_gap(case, suspect)]
    changed = yield from _swap(case, who)
    evidence.append(f"swap: with everybody else's tokens exchanged, {_words(changed)}")
    moved = changed is True
    if case.control.poison:
        changed = yield from _cells(case, who)
        evidence.append(f"residue: with other constants in every cell that is nobody's, {_words(changed)}")
        moved |= changed is True
    departs = yield from departs_in_float64(case, suspect)
    if departs is not None:
        what = "departs from it still" if departs else "gives the isolated logits"
        evidence.append(f"float64: with the same weights and the same tokens forced, the schedule {what}")
    evidence.append(_verdict(moved, departs))
    return tuple(evidence)


def _gap(case: Case, suspect: Suspect) -> str:
    """How near the two tokens are to each other alone."""
    request, position = case.requests[suspect.submission], suspect.position
    alone = case.reference.logits(request.prompt, (*case.answers[suspect.submission][:position], 0))[-1].double()
    gap = float(alone[suspect.expected] - alone[suspect.actual])
    return (
        f"tokens: request #{suspect.submission} says {suspect.actual} where it says {suspect.expected} alone, as token "
        f"{position}; alone their logits are {gap:.3g} apart, and rounding moves one by up to {suspect.bound:.3g}"
    )


def _swap(case: Case, who: int) -> Generator[Schedule, Trace, bool | None]:
    """Whether the others' content moves a bit of the request; None where it can't be told."""
    others = [other for other in range(len(case.requests)) if other != who]
    if not others:
        return False
    changed = yield from compare(case, [who], others)
    return None if changed is UNDECIDED else isinstance(changed, Change)


def _cells(case: Case, who: int) -> Generator[Schedule, Trace, bool | None]:
    """Whether what lies in free cells moves a bit of the request; None where it can't be told."""
    outcomes: list[bool | None] = []
    for poison in FINITE:
        settings = {**case.schedule.settings, POISON: poison}
        trace = yield msgspec.structs.replace(case.schedule, settings=settings)
        changed = first_change(case.trace, trace, [who])
        outcomes.append(None if changed is UNDECIDED else isinstance(changed, tuple))
    return True if True in outcomes else None if None in outcomes else False


def _words(changed: bool | None) -> str:
    return {True: "its bits change", False: "not a bit of it changes", None: "nothing can be compared"}[changed]


def _verdict(moved: bool, departs: bool | None) -> str:
    if moved:
        return "not rounding: its bits depend on what is not its own"
    if departs:
        return "not rounding: it departs where rounding is out of the way"
    if departs is None:
        return "undecided: nothing that is not its own moves a bit, and the target has no float64 to ask"
    return "rounding: nothing that is not its own moves a bit of it, and where rounding is out of the way it is right"
