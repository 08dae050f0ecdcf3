"""Rounding of an engine: how far its log-probabilities move from the reference's when only the arithmetic differs.

A request is asked alone, and beside copies of itself, which have nothing to leak; at the engine's defaults, and with each
drawn knob at each of its values, so that prompts run in parts, drafts are checked several at once, and batches have other
shapes. Each time in a fresh target. Logits that are off by so much move a log-probability by up to twice that, and beyond
twice the envelope a request is a suspect: both together, a bound on logits is as large as the largest departure seen here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.case import told
from targets.protocol import Crashed, Factory, Request, Schedule, Setting, Stalled, Submit, emitted_by_submission

LENGTHS = (1, 2, 5, 17, 31, 32, 33, 40, 97, 160, 400)
COPIES = (1, 2, 4, 8)
COPIES_OF_KNOBS = (1, 4)
NEW_TOKENS = 12


class Measured(msgspec.Struct, frozen=True):
    """One way to ask.

    Attributes:
        tokens: Those with a log-probability.
        largest: The largest departure of a log-probability from the reference's.
        otherwise: Tokens that are not the reference's own choice, with what they lack of its logit at most.
        broken: Plays that crashed or stalled.
    """

    way: str
    tokens: int
    largest: float
    otherwise: int
    regret: float
    broken: int


def measured(judge: Judge, seed: int, settings: dict[str, Setting]) -> Iterator[Measured]:
    """Each way in turn, the defaults first.

    Args:
        settings: Of knobs that stay as they are.
    """
    requests = drawn(judge.factory, seed)
    for copies in COPIES:
        yield _way(judge, f"{copies} at once" if copies > 1 else "alone", requests, (copies,), settings)
    for knob in judge.factory.knobs:
        for value in knob.values:
            if knob.drawn and knob.name not in settings and value != knob.default:
                yield _way(judge, f"{knob.name}={value}", requests, COPIES_OF_KNOBS, {**settings, knob.name: value})


def drawn(factory: Factory, seed: int) -> list[Request]:
    """A request of each length."""
    chance = random.Random(seed)
    ids = [token for token in range(factory.vocabulary) if token not in factory.special_ids]
    return [Request(prompt=tuple(chance.choices(ids, k=length)), max_new_tokens=NEW_TOKENS) for length in LENGTHS]


def bound(ways: Sequence[Measured]) -> float:
    """By so much logits may differ though nothing is wrong, as far as these ways show."""
    return max((way.largest for way in ways), default=0.0)


def _way(
    judge: Judge, name: str, requests: Sequence[Request], copies: Sequence[int], settings: dict[str, Setting]
) -> Measured:
    tokens, largest, otherwise, regret, broken = 0, 0.0, 0, 0.0, 0
    reference = judge.reference(settings)
    for request in requests:
        if len(request.prompt) + request.max_new_tokens > judge.factory.context_tokens_max(settings):
            continue
        for count in copies:
            trace = run_trio(judge.replay, Schedule(ops=(Submit(request),) * count, settings=settings), False)
            broken += any(isinstance(event, Crashed | Stalled) for event in trace)
            emitted = emitted_by_submission(trace)
            for submission, likely in told(emitted).items():
                answer = tuple(event.token for event in emitted[submission])
                logits = reference.logits(request.prompt, answer).double()
                for position, (token, value) in enumerate(zip(answer, likely, strict=True)):
                    row = logits[position]
                    lacks = float(row.max() - row[token])
                    otherwise += lacks > 0
                    regret = max(regret, lacks)
                    if value is not None:
                        tokens += 1
                        largest = max(largest, abs(value - float(row.log_softmax(-1)[token])))
    return Measured(name, tokens, largest, otherwise, regret, broken)
