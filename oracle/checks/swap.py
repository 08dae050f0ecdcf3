"""Swap (non-interference): a request's bits survive a change of everybody else's content, present and past.

The same schedule is replayed with some requests' tokens put through a bijection of the vocabulary without fixed points,
and the tokens they emitted *forced* to their images, so that lengths, stops and timing stay as they were. (Where a target
can't force tokens, they ignore what would end them early.) The others' bits are compared. Exact: no tolerance, on any dtype,
on engines whose arithmetic depends on the batch. It needs equal skeletons; where they depart before any bit does, the pair
is undecided.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from oracle.case import Case, alike
from oracle.finding import Finding, Report
from targets.protocol import (
    ACCOUNTS,
    CheckName,
    Emitted,
    Kind,
    Request,
    Schedule,
    Trace,
    skeleton,
    submissions,
    with_requests,
)
from targets.protocol.events import same_bits


def swap(case: Case) -> Generator[Schedule, Trace, Report]:
    """LEAK where a victim's bits change. One half a schedule; every victim in turn if the case is thorough.

    On a target that is not stepped equal skeletons do not prove equal arithmetic, so only suspects are asked there
    (`oracle.repeats`).
    Where the target's process ended, nothing is exchanged: each replay may cost a process and a hang's whole patience.
    """
    report = Report()
    everyone = range(len(case.requests))
    if len(everyone) < 2 or not case.control.stepped:
        return report
    if case.died:
        report.pairs_undecided += 1
        return report
    halves = [[victim] for victim in everyone] if case.thorough else [case.random.sample(everyone, len(everyone) // 2)]
    for victims in halves:
        changed = yield from compare(case, victims, [other for other in everyone if other not in victims])
        report.pairs += changed is not UNDECIDED
        report.pairs_undecided += changed is UNDECIDED
        if isinstance(changed, Change):
            report.findings.append((yield from conviction(case, changed)))
            break
    return report


@dataclass(frozen=True)
class Change:
    """A victim's first bits that departed: its submission, the index into its answer, and whether sharing was kept."""

    submission: int
    position: int
    keep_shared: bool


class _Undecided:
    """The skeletons departed before any victim's bits did, or there was nothing to exchange."""


UNDECIDED = _Undecided()


def compare(
    case: Case, victims: Collection[int], others: Sequence[int], keep_shared: bool = True
) -> Generator[Schedule, Trace, Change | _Undecided | None]:
    """Swaps the content of `others` and looks at the bits of `victims`. None: not one changed.

    Args:
        keep_shared: Keep the prefix that a neighbour shares with a victim, as a target that stores it once must see it.
            Without, everything is exchanged: that may change what a prefix cache does, and so the bits of an honest
            target, but it also shows a leak of the very tokens that are shared.
    """
    variant = swapped(case, victims, others, keep_shared)
    if all(a.prompt == b.prompt for a, b in zip(submissions(variant), case.requests, strict=True)):
        return UNDECIDED
    before = case.trace
    if not case.control.forced and endless(case, others) != case.schedule:
        before = yield endless(case, others)
    trace = yield variant
    changed = first_change(before, trace, victims)
    return Change(*changed, keep_shared) if isinstance(changed, tuple) else changed


def endless(case: Case, others: Collection[int]) -> Schedule:
    """The schedule with `others` ignoring what ends an answer early: their lengths stay equal without forced tokens."""

    def change(submission: int, request: Request) -> Request:
        return msgspec.structs.replace(request, stop=(), stop_sequences=()) if submission in others else request

    return with_requests(case.schedule, change)


def first_change(before: Trace, after: Trace, victims: Collection[int]) -> tuple[int, int] | _Undecided | None:
    """The first victim whose bits differ, and where in its answer. None: not one does, and the skeletons are equal."""
    ours, theirs = ([event for event in whole if not isinstance(event, ACCOUNTS)] for whole in (before, after))
    counts: dict[int, int] = {}
    for event, other, bones, others_bones in zip(ours, theirs, skeleton(before), skeleton(after), strict=False):
        if bones != others_bones:
            return UNDECIDED
        if isinstance(event, Emitted) and isinstance(other, Emitted):
            position = counts.get(event.submission, 0)
            counts[event.submission] = position + 1
            if event.submission in victims and not same_bits(event, other):
                return event.submission, position
    return None if len(ours) == len(theirs) else UNDECIDED


def conviction(case: Case, change: Change) -> Generator[Schedule, Trace, Finding]:
    """The finding for a change of bits; a thorough case names the sources.

    One neighbour at a time first. Where no single one changes the bits, two or more must change together (a sum that only
    both move beyond a rounding, say): the smallest group that does is named as a group.
    """
    victim = change.submission
    others = [other for other in range(len(case.requests)) if other != victim]
    sources: list[int] = []
    together = False
    if case.thorough:
        for other in others:
            moved = yield from _moves(case, change, [other])
            if moved:
                sources.append(other)
        if not sources:
            sources = yield from _group(case, change, others)
            together = bool(sources)
    named = " ".join(f"#{source}" for source in sources)
    asked = f"{named} asked together" if together else f"{named} asked" if named else "others asked"
    evidence = [
        f"swap: with other requests' tokens exchanged and everything else equal, the bits of token "
        f"{change.position} of request #{victim} change"
    ]
    if together:
        evidence.append(f"swap: no single neighbour's tokens change them; those of {named} together do, and of no fewer")
    return Finding(
        kind=Kind.LEAK,
        check=CheckName.SWAP,
        what=f"request #{victim} depends on what {asked}",
        submission=victim,
        position=change.position,
        actual=case.answers[victim][change.position],
        answer=case.answers[victim],
        sources=tuple(sources),
        evidence=tuple(evidence),
    )


def _moves(case: Case, change: Change, others: Sequence[int]) -> Generator[Schedule, Trace, bool]:
    """Whether the victim's bits change when only `others` are exchanged."""
    seen = yield from compare(case, [change.submission], others, change.keep_shared)
    return isinstance(seen, Change)


def _group(case: Case, change: Change, others: Sequence[int]) -> Generator[Schedule, Trace, list[int]]:
    """The neighbours that must change together: none of them can be left out. Empty where all of them no longer do it.

    Delta debugging: halves are left out, then quarters, down to one at a time until a whole round of those leaves nothing.
    """
    group = list(others)
    if len(group) < 2 or not (yield from _moves(case, change, group)):
        return []
    size = len(group) // 2
    while True:
        before = len(group)
        for start in range(0, before, size):
            fewer = [other for other in group if other not in others[start : start + size]]
            if 1 < len(fewer) < len(group) and (yield from _moves(case, change, fewer)):
                group = fewer
        if size == 1 and len(group) == before:
            return group
        others, size = tuple(group), max(1, min(size // 2, len(group) // 2))


def swapped(case: Case, victims: Collection[int], others: Sequence[int], keep_shared: bool = True) -> Schedule:
    """The schedule with the content of `others` put through a bijection that leaves what they share with a victim.

    That is as much of a prompt as another request brings or has answered, either way round: a session goes on from what was
    answered, and whoever stores that once hits it there.
    """
    kept = {other: max((_shared(case, other, victim) for victim in victims if keep_shared), default=0) for other in others}
    shift = _shift(case, victims, kept)

    def through(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(case.alphabet.image(token, shift) for token in tokens)

    def change(submission: int, request: Request) -> Request:
        if submission not in kept:
            return request
        shared, answer = kept[submission], case.answers.get(submission, request.forced)
        told = max(0, shared - len(request.prompt))
        if not case.control.forced:
            prompt = (*request.prompt[:shared], *through(request.prompt[shared:]))
            return msgspec.structs.replace(request, prompt=prompt, stop=(), stop_sequences=())
        return msgspec.structs.replace(
            request,
            prompt=(*request.prompt[:shared], *through(request.prompt[shared:])),
            stop=through(request.stop),
            stop_sequences=tuple(map(through, request.stop_sequences)),
            sampling=msgspec.structs.replace(
                request.sampling,
                bias=tuple((case.alphabet.image(token, shift), added) for token, added in request.sampling.bias),
                allowed=through(request.sampling.allowed),
            ),
            forced=(*answer[:told], *through(answer[told:])),
        )

    return with_requests(case.schedule, change)


def _whole(case: Case, submission: int) -> tuple[int, ...]:
    """A request's prompt and answer."""
    return (*case.requests[submission].prompt, *case.answers.get(submission, ()))


def _shared(case: Case, one: int, other: int) -> int:
    """How many tokens two requests begin with alike, where they are in the prompt of one of them."""
    ours, theirs = (case.requests[submission].prompt for submission in (one, other))
    return max(alike(_whole(case, one), theirs), alike(ours, _whole(case, other)))


def _shift(case: Case, victims: Collection[int], kept: Mapping[int, int]) -> int:
    """A shift of the alphabet under which nobody shares more of a victim's prompt than before."""
    shift = 1
    wholes = {submission: _whole(case, submission) for submission in (*kept, *victims)}
    behind = [
        (wholes[other][shared], wholes[victim][shared])
        for other, shared in kept.items()
        for victim in victims
        if shared < min(len(wholes[other]), len(wholes[victim]))
    ]
    for _ in range(8):
        shift = case.random.randrange(1, len(case.alphabet.ids))
        if all(case.alphabet.image(theirs, shift) != ours for theirs, ours in behind):
            break
    return shift
