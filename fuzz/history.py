"""History: several schedules one after another on one target, and how much of what came before a failure it takes.

Where a fresh target is dear it is drained and goes on, rather than being opened anew for each schedule. What it has been
through since it was opened is then the beginning of one longer schedule, in *stretches*: before the next one begins,
everybody who came has been waited for. So whatever replays, shrinks, stores or explains a schedule has its history with it,
and knows nothing of histories.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from fuzz.edits import keep_requests
from fuzz.shrink import Evaluate
from oracle.finding import Finding
from targets.protocol import Cancel, Op, Schedule, Step, Submit, Wait, submissions


def in_a_row(schedules: Iterator[Schedule], count: int) -> Iterator[Schedule]:
    """Each `count` schedules as one."""
    while several := list(itertools.islice(schedules, count)):
        yield joined(several)


def joined(schedules: Sequence[Schedule]) -> Schedule:
    """Schedules one after another on one target, which is opened with the settings of the first."""
    ops = list(schedules[0].ops)
    for schedule in schedules[1:]:
        ops += _ends(ops)
        first = sum(isinstance(op, Submit) for op in ops)
        ops += [_moved(op, first) for op in schedule.ops]
    return msgspec.structs.replace(schedules[0], ops=tuple(ops))


def stretches(schedule: Schedule) -> tuple[range, ...]:
    """The stretches of a schedule, as ranges of its ops; a single one where somebody is always left."""
    found: list[range] = []
    begin, coming, awaited = 0, 0, set[int]()
    requests = submissions(schedule)
    for index, op in enumerate(schedule.ops):
        if isinstance(op, Submit):
            awaited.add(coming)
            coming += 1
        elif isinstance(op, Cancel) or (isinstance(op, Wait) and op.tokens > requests[op.submission].max_new_tokens):
            awaited.discard(op.submission)
            if not awaited and begin <= index and coming < len(requests):
                found.append(range(begin, index + 1))
                begin = index + 1
    return (*found, range(begin, len(schedule.ops)))


@dataclass(frozen=True)
class History:
    """A failing schedule with no more before the failure than it takes.

    Attributes:
        needed, had: Stretches beside the failure's own, now and before.
        evaluations: Schedules that were judged to find that out.
    """

    schedule: Schedule
    finding: Finding
    needed: int = 0
    had: int = 0
    evaluations: int = 0

    @property
    def evidence(self) -> tuple[str, ...]:
        """What that says of the failure, in a sentence; none where it needs no history."""
        if not self.needed:
            return ()
        return (
            f"history: it takes {self.needed} of the {self.had} other stretches, after which nobody was left, and no fewer",
        )


async def least_history(schedule: Schedule, finding: Finding, evaluate: Evaluate) -> History:
    """Tries a failure on a fresh target; where it is right there, drops all that came later, then halves of the history.

    Quarters follow, and so on down to single stretches, as long as the failure stays the same.

    Args:
        evaluate: Judges a schedule on a target that is opened for it.
    """
    every = stretches(schedule)
    best = History(schedule, finding, len(every) - 1, len(every) - 1)
    if not best.needed:
        return best
    evaluations, kept = 0, list(range(len(every)))
    place = None if finding.submission is None else _places(schedule)[finding.submission]
    held = {which for which, stretch in enumerate(every) if place in stretch}

    async def fails(fewer: list[int]) -> bool:
        nonlocal best, evaluations, kept
        if not 0 < len(fewer) < len(kept):
            return False
        smaller = _only(schedule, [every[which] for which in fewer])
        evaluations += 1
        found = await evaluate(smaller)
        if found is None:
            return False
        best, kept = replace(best, schedule=smaller, finding=found, needed=len(fewer) - 1), fewer
        return True

    for own in held:
        await fails([own])
        await fails(list(range(own + 1)))
    size = len(kept) // 2
    while size:
        fewest = len(kept)
        for begin in range(0, len(every), size):
            await fails([which for which in kept if which in held or not begin <= which < begin + size])
        size = size // 2 if size > 1 else min(1, fewest - len(kept))
    return replace(best, evaluations=evaluations)


def _ends(ops: Sequence[Op]) -> list[Op]:
    """Waits for the end of everybody who does not give up: nobody gets more tokens than were asked for."""
    gone = {op.submission for op in ops if isinstance(op, Cancel)}
    asked = [op.request.max_new_tokens for op in ops if isinstance(op, Submit)]
    awaited = {op.submission for op in ops if isinstance(op, Wait) and op.tokens > asked[op.submission]}
    return [Wait(each, tokens + 1) for each, tokens in enumerate(asked) if each not in gone | awaited]


def _moved(op: Op, first: int) -> Op:
    """An op of which the first submission has this number."""
    if isinstance(op, Submit):
        named = {name: getattr(op.request, name) for name in ("sample_of", "continues")}
        moved = {name: which + first for name, which in named.items() if which is not None}
        return Submit(msgspec.structs.replace(op.request, **moved))
    if isinstance(op, Step):
        return op if op.rows is None else Step(op.count, tuple(row + first for row in op.rows))
    return msgspec.structs.replace(op, submission=op.submission + first)


def _places(schedule: Schedule) -> list[int]:
    """Where each submission is handed in, as an index into the ops."""
    return [index for index, op in enumerate(schedule.ops) if isinstance(op, Submit)]


def _only(schedule: Schedule, kept: Sequence[range]) -> Schedule:
    """Only these stretches, their submissions renumbered."""
    remaining = {index for stretch in kept for index in stretch}
    wanted = {submission for submission, place in enumerate(_places(schedule)) if place in remaining}
    ops = [op for index, op in enumerate(schedule.ops) if index in remaining or not isinstance(op, Step)]
    return keep_requests(msgspec.structs.replace(schedule, ops=tuple(ops)), wanted)
