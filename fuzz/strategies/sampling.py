"""Sampling parameters for requests: a few at a time, and of a size at which they change tokens."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fuzz.strategies.dice import Dice
from fuzz.strategies.requests import Space
from targets.protocol import Request

Way = Callable[[Dice, Space, Request], Request]
"""Gives a request one kind of parameter."""

TEMPERATURES = (1.0, 0.7, 2.0, 0.3, 5.0, 0.01)
SEEDS = (0, 1, 2, 999_999)
"""Few, so that neighbours often have the same one, and sometimes not."""
REPETITION_PENALTIES = (1.3, 2.0, 0.5, 10.0)
PENALTIES = (0.5, 2.0, 10.0, -0.5, -3.0)
BIASES = (2.0, 5.0, 100.0, -5.0, -100.0)
ALLOWED = (1, 2, 3, 8, 40)
LOGPROBS = (1, 2, 5, 1000)
LARGE = 1e9


def sampled(dice: Dice, space: Space, request: Request) -> Request:
    """The request with one to three kinds of parameters: with a temperature as often as not, so that two may meet."""
    others = dice.below(3)
    if dice.below(2) or not others:
        request = _drawn(dice, space, request)
    for _ in range(others):
        request = dice.pick(WAYS)(dice, space, request)
    return _possible(request)


def extreme(dice: Dice, space: Space, request: Request) -> Request:
    """The request with one parameter at an end of its range."""
    token, last = _ids(dice, space, 1)[0], request.max_new_tokens
    ends = space.piece(space.vocabulary // 8, dice.below(4096))
    ways: tuple[dict[str, object], ...] = (
        {"temperature": 0.0, "seed": 7},
        {"bias": ((token, LARGE),)},
        {"bias": ((token, -LARGE),)},
        {"allowed": (token,)},
        {"min_new_tokens": last},
        {"temperature": 100.0},
        {"repetition_penalty": 100.0},
        {"frequency_penalty": -LARGE},
        {"logprobs": space.vocabulary},
    )
    changes = dice.pick(ways)
    return _possible(_with(msgspec.structs.replace(request, stop=ends), **changes))


def _drawn(dice: Dice, space: Space, request: Request) -> Request:
    return _with(request, temperature=dice.pick(TEMPERATURES), seed=dice.pick(SEEDS))


def _penalised(dice: Dice, space: Space, request: Request) -> Request:
    which = dice.below(3)
    if which == 0:
        return _with(request, repetition_penalty=dice.pick(REPETITION_PENALTIES))
    return _with(request, **{("presence_penalty", "frequency_penalty")[which - 1]: dice.pick(PENALTIES)})


def _biased(dice: Dice, space: Space, request: Request) -> Request:
    return _with(request, bias=tuple((token, dice.pick(BIASES)) for token in _ids(dice, space, 1 + dice.below(4))))


def _allowed(dice: Dice, space: Space, request: Request) -> Request:
    return _with(request, allowed=_ids(dice, space, dice.pick(ALLOWED)))


def _not_before(dice: Dice, space: Space, request: Request) -> Request:
    """Stop ids that are likely to come, and how many tokens must come first."""
    ends = request.stop or tuple(sorted(set(space.piece(space.vocabulary // 4, dice.below(4096)))))
    last = request.max_new_tokens
    return _with(msgspec.structs.replace(request, stop=ends), min_new_tokens=dice.pick((1, 2, 3, last - 1, last)))


def _stop_sequences(dice: Dice, space: Space, request: Request) -> Request:
    """Sequences that can come: of two of the few ids that are allowed, or of a single one of many."""
    if dice.below(2):
        few = _ids(dice, space, 3)
        pairs = tuple((first, second) for first in few for second in few if first != second)
        return msgspec.structs.replace(_with(request, allowed=few), stop_sequences=pairs[: 1 + dice.below(len(pairs))])
    ends = sorted(set(space.piece(space.vocabulary // 8, dice.below(4096))))
    return msgspec.structs.replace(request, stop_sequences=tuple((token,) for token in ends))


def _told(dice: Dice, space: Space, request: Request) -> Request:
    return _with(request, logprobs=dice.pick(LOGPROBS))


WAYS: tuple[Way, ...] = (_penalised, _biased, _allowed, _not_before, _stop_sequences, _told)


def _with(request: Request, **changes: object) -> Request:
    """The request with other parameters, and the rest as they are."""
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, **changes))


def _possible(request: Request) -> Request:
    """The request without a minimum where every allowed id is a stop id, so that there were nothing to choose."""
    allowed = request.sampling.allowed
    return _with(request, min_new_tokens=0) if allowed and not set(allowed) - set(request.stop) else request


def _ids(dice: Dice, space: Space, count: int) -> tuple[int, ...]:
    """So many ordinary ids, each once, from one place of the alphabet on."""
    ids, place = space.ordinary_ids, dice.below(len(space.ordinary_ids))
    step = 1 + 2 * dice.below(32)
    return tuple(dict.fromkeys(ids[(place + step * index) % len(ids)] for index in range(count)))
