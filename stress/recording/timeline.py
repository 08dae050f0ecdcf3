"""Timeline: what clients saw of a run, as a schedule in logical time.

The clock is left out: that a request was sent after another stream had given so many tokens becomes a `Wait` before its
`Submit`. What no client can see, which requests met in which step, is not in it: the same schedule may go otherwise on a
target that is asked by the clock, and a bug may want it a little earlier or later. `variations` moves it about.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from stress.transcript import Exchange
from targets.protocol import Cancel, Op, Request, Schedule, Setting, Submit, Wait

HISTORIES = (0, 4, 16, 64)
"""So many requests before those that overlapped are asked as well."""
JITTERED = 4
"""So many ways to move each of these about are tried."""
JITTER_TOKENS = 3


class _Moment(NamedTuple):
    """Something that a client did or heard."""

    at_s: float
    order: int
    submission: int
    tokens: int | None


def schedule_of(
    exchanges: Sequence[Exchange], settings: dict[str, Setting], chance: random.Random | None = None
) -> Schedule:
    """These requests, in the order in which they were sent, each after what had been heard by then.

    Args:
        chance: Moves each wait by a few tokens.
    """
    moments: list[_Moment] = []
    for submission, exchange in enumerate(exchanges):
        moments.append(_Moment(exchange.sent_s, 1, submission, None))
        heard = 0
        for piece in exchange.pieces:
            heard += len(piece.tokens)
            moments.append(_Moment(piece.at_s, 0, submission, heard))
        if exchange.outcome == "cancelled":
            moments.append(_Moment(exchange.ended_s, 2, submission, None))
    ops: list[Op] = []
    heard_of: dict[int, int] = {}
    latest: int | None = None
    for moment in sorted(moments):
        if moment.tokens is not None:
            heard_of[moment.submission], latest = moment.tokens, moment.submission
            continue
        if moment.order == 2 and heard_of.get(moment.submission):
            latest = moment.submission
        if latest is not None and heard_of[latest]:
            ops.append(
                Wait(latest, max(heard_of[latest] + (chance.randint(-JITTER_TOKENS, JITTER_TOKENS) if chance else 0), 0))
            )
            latest = None
        if moment.order == 1:
            ops.append(Submit(_plain(exchanges[moment.submission].request)))
        else:
            ops.append(Cancel(moment.submission))
    return Schedule(ops=tuple(ops), settings=settings)


def overlapping(exchanges: Sequence[Exchange], victim: Exchange) -> list[Exchange]:
    """Those that were open while the victim was, itself included, by when they were sent."""
    found = [each for each in exchanges if each.sent_s <= victim.ended_s and each.ended_s >= victim.sent_s]
    return sorted(found, key=lambda each: each.sent_s)


def variations(exchanges: Sequence[Exchange], victim: Exchange, settings: dict[str, Setting]) -> Iterator[Schedule]:
    """Schedules that may show what the victim saw: those that overlapped it, with ever more history, moved about."""
    sent = sorted((each for each in exchanges if each.outcome not in ("refused", "unreached")), key=lambda each: each.sent_s)
    together = overlapping(sent, victim)
    first = next((place for place, each in enumerate(sent) if each is together[0]), 0)
    last = next((place for place, each in enumerate(sent) if each is together[-1]), 0)
    tried = set()
    for jitter in range(1 + JITTERED):
        for history in HISTORIES:
            taken = sent[max(first - history, 0) : last + 1] if history else together
            chance = random.Random(jitter) if jitter else None
            schedule = schedule_of(taken, settings, chance)
            if schedule.key() not in tried:
                tried.add(schedule.key())
                yield schedule


def _plain(request: Request) -> Request:
    """A request as it can be asked anywhere: what names others goes."""
    return msgspec.structs.replace(request, continues=None, sample_of=None, deadline_s=None, forced=())
