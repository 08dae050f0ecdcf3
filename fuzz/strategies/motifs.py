"""Motifs: schedules of the shapes that broke real engines, with everything else left to chance.

Each takes a draw function and a space, and returns lives. The numbers are those of the motifs list that the project was
built on: what the public bug reports of twenty engines have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fuzz.strategies.lives import Life
from fuzz.strategies.requests import ANSWERS, Shape, Space
from targets.protocol import Request

Draw = Callable[[Any], Any]
Motif = Callable[[Draw, Space], list[Life]]


def _request(draw: Draw, space: Space, length: int | None = None, answer: int | None = None) -> Request:
    """A request of any shape, but for what the motif fixes."""
    shape = Shape.of(draw(space.draws.seed))
    return Request(
        prompt=space.piece(shape.length if length is None else length, shape.place),
        max_new_tokens=shape.answer if answer is None else answer,
    )


def identical_prompt_twice(draw: Draw, space: Space) -> list[Life]:
    """1, 11: the same prompt cold, then beside itself in one step, then again later."""
    one = _request(draw, space)
    again = msgspec.structs.replace(one, max_new_tokens=ANSWERS[draw(space.draws.some)])
    gap = draw(space.draws.some)
    return [Life(one), Life(again, arrival=draw(space.draws.few)), Life(_request(draw, space)), Life(one, arrival=3 + gap)]


def shared_prefix_at_once(draw: Draw, space: Space) -> list[Life]:
    """11: prompts that begin alike and go on differently, admitted in one step; and one more of them later."""
    prefix = _request(draw, space, length=1 + draw(space.draws.some) * 3).prompt
    lives = []
    for index in range(3):
        tail = _request(draw, space, length=1 + draw(space.draws.some))
        whole = msgspec.structs.replace(tail, prompt=prefix + tail.prompt)
        lives.append(Life(whole, arrival=0 if index < 2 else draw(space.draws.some)))
    return [*lives, Life(_request(draw, space))]


def longest_ends_first(draw: Draw, space: Space) -> list[Life]:
    """3: the longest row leaves while shorter ones go on."""
    others = [
        Life(_request(draw, space, answer=4 + draw(space.draws.some)), arrival=draw(space.draws.few)) for _ in range(3)
    ]
    place = draw(space.draws.few)
    others.insert(place, Life(_request(draw, space, length=36 + place, answer=1 + draw(space.draws.few))))
    return others


def slot_reused_by_longer_then_shorter(draw: Draw, space: Space) -> list[Life]:
    """4: a short request ends, a longer one takes its slot at once, then a shorter one."""
    lengths = (2 + draw(space.draws.few), 12 + draw(space.draws.some), 1 + draw(space.draws.few))
    lives = [
        Life(_request(draw, space, length, 1 + draw(space.draws.few)), arrival=index) for index, length in enumerate(lengths)
    ]
    return [*lives, Life(_request(draw, space, answer=10), arrival=0)]


def join_mid_decode(draw: Draw, space: Space) -> list[Life]:
    """6: somebody joins, and somebody leaves, while a neighbour is in the middle of its answer."""
    return [
        Life(_request(draw, space, answer=12)),
        Life(_request(draw, space, answer=2), arrival=1),
        Life(_request(draw, space), arrival=3 + draw(space.draws.few)),
        Life(_request(draw, space), arrival=5 + draw(space.draws.few)),
    ]


def cancel_in_every_state(draw: Draw, space: Space) -> list[Life]:
    """8: a cancel when queued, after the first token, in the middle, on the last step, and of all at once."""
    lives = []
    for index in range(5):
        request = _request(draw, space, answer=4)
        lives.append(Life(request, arrival=index // 2, cancel_after=draw(space.draws.few) + index % 3))
    return [*lives, Life(_request(draw, space), arrival=1), Life(_request(draw, space), arrival=4)]


def id_reused(draw: Draw, space: Space) -> list[Life]:
    """9: an id taken again at once after its cancel or its end, and two live requests with one id."""
    named = msgspec.structs.replace(_request(draw, space, answer=5), client_id=1)
    again = msgspec.structs.replace(_request(draw, space, answer=4), client_id=1)
    end = draw(space.draws.few)
    return [
        Life(named, cancel_after=2 if end > 1 else None),
        Life(again, arrival=draw(space.draws.some)),
        Life(_request(draw, space)),
        Life(msgspec.structs.replace(_request(draw, space), client_id=1), arrival=5),
    ]


def extremes(draw: Draw, space: Space) -> list[Life]:
    """10, 13: what can never be served, and the smallest things that can, beside ordinary requests."""
    impossible = (
        Request(prompt=(), max_new_tokens=4),
        Request(prompt=(space.vocabulary,), max_new_tokens=4),
        Request(prompt=space.piece(1300, 0), max_new_tokens=2),
        Request(prompt=space.piece(5, 5), max_new_tokens=0),
    )[draw(space.draws.few)]
    return [
        Life(_request(draw, space)),
        Life(impossible, arrival=1),
        Life(_request(draw, space, length=1, answer=1), arrival=1),
        Life(_request(draw, space), arrival=draw(space.draws.few)),
    ]


def idle_then_first(draw: Draw, space: Space) -> list[Life]:
    """14: the target idles, serves a burst, idles again, serves another."""
    later = 24 + draw(space.draws.some)
    return [Life(_request(draw, space), arrival=1 + index % 2) for index in range(3)] + [
        Life(_request(draw, space), arrival=later + index) for index in range(2)
    ]


def crowd(draw: Draw, space: Space) -> list[Life]:
    """10: far more requests than slots, all at once, short and long mixed."""
    return [Life(_request(draw, space, answer=1 + (index * 3) % 7), arrival=index // 6) for index in range(8)]


MOTIFS: tuple[Motif, ...] = (
    identical_prompt_twice,
    shared_prefix_at_once,
    longest_ends_first,
    slot_reused_by_longer_then_shorter,
    join_mid_decode,
    cancel_in_every_state,
    id_reused,
    extremes,
    idle_then_first,
    crowd,
)
