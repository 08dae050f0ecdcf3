"""Life-cycle events, read off a trace, and *grams*: so many of them in a row, with who is who among them.

Steps, waits and accounts are no events, and a cancel is one only where it ends something. In which state a request was when
it was cancelled, preempted or refused is told by what stands before. A gram is of the whole trace, not of one request's
life: that somebody else is admitted between a preemption and the next token is another gram than that nobody is.

Most events by far are tokens of requests that merely decode: four rows for twenty steps are eighty of them, and say nothing
more than the first four. So all that follow each other without anything else between, in however many steps, are one event,
TOKENS, of all those requests. A gram then reaches from one turn of somebody's life to the next one. First tokens stay apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from targets.protocol import (
    Admitted,
    Asked,
    Emitted,
    Finished,
    Freed,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Schedule,
    Submit,
    Trace,
)


class Turn:
    """What happens to a request; TOKENS to several. Plain strings: they hash ten times as fast as members of an enum."""

    SUBMIT = "submit"
    REFUSED = "refused"
    ADMITTED = "admitted"
    RESUMED = "resumed"
    """Admitted again, after a preemption."""
    CHUNK = "chunk"
    FIRST = "first"
    TOKENS = "tokens"
    PREEMPTED = "preempted"
    LENGTH = "length"
    STOP = "stop"
    CONTEXT = "context"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    FREED = "freed"


_LETTERS = "abcdefgh"
_PLAIN: dict[type, str] = {Prefilled: Turn.CHUNK, Refused: Turn.REFUSED, Freed: Turn.FREED}
ENDS = {reason: reason.value for reason in Reason}
Happening = tuple[str, tuple[int, ...]]
"""An event, and whose it is: one request's, or, of TOKENS, all of those that got any, in order."""
Gram = str
"""In words: `preempted a, tokens b, resumed a`. Requests have letters in the order in which the events other than TOKENS
name them; whom only TOKENS names is left out, and where that leaves nobody it says `tokens -`."""


def happenings(schedule: Schedule, trace: Trace) -> list[Happening]:
    """The life-cycle events of a trace, in order."""
    events: list[Happening] = []
    decoding: set[int] = set()
    for turn, who in _turns(schedule, trace):
        if turn == Turn.TOKENS:
            decoding.add(who)
            continue
        if decoding:
            events.append((Turn.TOKENS, tuple(sorted(decoding))))
            decoding.clear()
        events.append((turn, (who,)))
    return [*events, (Turn.TOKENS, tuple(sorted(decoding)))] if decoding else events


def _turns(schedule: Schedule, trace: Trace) -> Iterator[tuple[str, int]]:
    """Every turn with its request; each token that is not a first one is a turn."""
    submitted = 0
    spoken: set[int] = set()
    preempted: set[int] = set()
    for event in trace:
        if isinstance(event, Emitted):
            yield Turn.TOKENS if event.submission in spoken else Turn.FIRST, event.submission
            spoken.add(event.submission)
        elif isinstance(event, Asked):
            if event.op < len(schedule.ops) and isinstance(schedule.ops[event.op], Submit):
                yield Turn.SUBMIT, submitted
                submitted += 1
        elif isinstance(event, Admitted):
            yield Turn.RESUMED if event.submission in preempted else Turn.ADMITTED, event.submission
        elif isinstance(event, Preempted):
            yield Turn.PREEMPTED, event.submission
            preempted.add(event.submission)
        elif isinstance(event, Finished):
            yield ENDS[event.reason], event.submission
        elif isinstance(event, Prefilled | Refused | Freed):
            yield _PLAIN[type(event)], event.submission


def gram(events: Sequence[Happening]) -> Gram:
    """These events in words, so that two runs of events are equal where the same happened."""
    letter: dict[int, str] = {}
    for turn, who in events:
        if turn != Turn.TOKENS and who[0] not in letter:
            letter[who[0]] = _LETTERS[len(letter)]
    return ", ".join(
        f"{turn} {letter[who[0]]}"
        if turn != Turn.TOKENS
        else f"{turn} {''.join(sorted(letter[each] for each in who if each in letter)) or '-'}"
        for turn, who in events
    )


def grams(events: Sequence[Happening], size: int) -> set[Gram]:
    """Every gram of this size."""
    return {gram(events[start : start + size]) for start in range(len(events) - size + 1)}
