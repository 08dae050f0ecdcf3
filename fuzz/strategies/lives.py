"""Lives: a request with its arrival and, perhaps, its early end; and how a set of lives becomes a list of ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from targets.protocol import Cancel, Op, Request, Step, Submit, Wait


@dataclass
class Life:
    """One request's life cycle.

    Attributes:
        arrival: The step before which it is submitted, from the start of the schedule.
        cancel_after: Steps from its arrival to its cancel; None for never.
        after: (life, tokens): it is submitted only once that earlier life has given so many tokens.
        before: An earlier life whose prompt and answer come before its own prompt.
        sibling: An earlier life to whose prompt it asks for one more answer.
    """

    request: Request
    arrival: int = 0
    cancel_after: int | None = None
    after: tuple[int, int] | None = None
    before: int | None = None
    sibling: int | None = None


@dataclass(frozen=True)
class Turn:
    """From step `start` on, for `steps` steps, only these lives advance: a seeded interleaving."""

    start: int
    steps: int
    lives: tuple[int, ...]


def to_ops(lives: Sequence[Life], turns: Sequence[Turn] = ()) -> tuple[Op, ...]:
    """Merges lives into ops: what happens in one step is asked in the order of the lives, cancels last.

    Submissions are numbered by arrival, so a life's index and its submission may differ.
    """
    order = sorted(range(len(lives)), key=lambda index: lives[index].arrival)
    submission = {life: number for number, life in enumerate(order)}
    moments: dict[int, list[tuple[int, int]]] = {}
    for life in order:
        moments.setdefault(lives[life].arrival, []).append((0, life))
        cancel = lives[life].cancel_after
        if cancel is not None:
            moments.setdefault(lives[life].arrival + cancel, []).append((1, life))
    starts = {turn.start: turn for turn in turns}
    ops: list[Op] = []
    now = 0
    for moment in sorted({*moments, *starts}):
        if moment > now:
            ops.append(Step(moment - now))
            now = moment
        for kind, life in sorted(moments.get(moment, ()), key=lambda entry: entry[0]):
            if kind == 1:
                ops.append(Cancel(submission[life]))
                continue
            after = lives[life].after
            if after is not None and submission[after[0]] < submission[life]:
                ops.append(Wait(submission[after[0]], after[1]))
            ops.append(Submit(_named(lives[life], submission, submission[life])))
        if moment in starts:
            ops += _turn(starts[moment], submission, sum(isinstance(op, Submit) for op in ops))
    return tuple(ops)


def _named(life: Life, submission: dict[int, int], own: int) -> Request:
    """Its request, naming the submissions whose sibling it is and from which it goes on, if they come before it."""
    named = {"sample_of": life.sibling, "continues": life.before}
    earlier = {name: submission[other] for name, other in named.items() if other is not None and submission[other] < own}
    return msgspec.structs.replace(life.request, **earlier) if earlier else life.request


def _turn(turn: Turn, submission: dict[int, int], submitted: int) -> list[Op]:
    """One step a life, in turn, of those that have been submitted."""
    named = [submission[life] for life in turn.lives if submission[life] < submitted]
    return [Step(1, rows=(named[step % len(named)],)) for step in range(turn.steps)] if named else []
