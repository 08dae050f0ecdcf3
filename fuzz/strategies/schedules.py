"""Schedules: a mix of lives with a random set of features switched on (swarm), or a motif, with settings drawn beside.

Half of all schedules are motifs. In the others each feature is on or off for the whole schedule, so that features do not
drown each other: a schedule without cancels reaches states that one full of them never does.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from fuzz.strategies.lives import Life, Turn, to_ops
from fuzz.strategies.motifs import MOTIFS, Draw
from fuzz.strategies.requests import Shape, Space
from targets.protocol import Schedule, Setting

FEATURES = (
    "burst",
    "cancel",
    "deadline",
    "stop",
    "ids",
    "shared-prefix",
    "wait",
    "rows",
    "tiny-pool",
    "settings",
)
"""Each is on in half of the schedules."""
LONG_ONE_IN = 128
"""One schedule in so many has a request of hundreds of tokens."""
_LONG_PROMPT = (500, 511, 512, 513, 700, 1000, 1023, 1024)
LONG_TOKENS = 1280


@st.composite
def schedules(draw: Draw, space: Space) -> Schedule:
    """A schedule for a target with this space."""
    draws = space.draws
    bits, choice = draw(draws.choice), draw(draws.choice)
    on = {name for index, name in enumerate(FEATURES) if bits >> index & 1}
    settings: dict[str, Setting] = dict(draw(space.settings)) if "settings" in on else {}
    if "tiny-pool" in on and any(knob.name == "slots" for knob in space.knobs):
        settings["slots"] = 1 + choice // 64 % 2
    lives = MOTIFS[choice // 2 % len(MOTIFS)](draw, space) if choice % 2 else _mix(draw, space, on)
    if choice >= 2**16 - 2**16 // LONG_ONE_IN and space.long:
        settings |= _lengthen(draw, space, lives)
    turns = _turns(draw, space, lives) if "rows" in on and space.rows else []
    return Schedule(ops=to_ops(lives, turns), settings=settings)


def _mix(draw: Draw, space: Space, on: set[str]) -> list[Life]:
    """Three to eight lives at random, with the features that are on."""
    lives: list[Life] = []
    now = 0
    common = space.piece(12, Shape.of(draw(space.draws.seed)).place) if "shared-prefix" in on else ()
    for index in range(draw(space.draws.many)):
        shape = Shape.of(draw(space.draws.seed))
        life = Life(shape.request(space), arrival=now)
        _vary(draw, space, on, common, life, index, shape.chance)
        lives.append(life)
        if "burst" not in on:
            now += shape.gap
    return lives


def _vary(draw: Draw, space: Space, on: set[str], common: tuple[int, ...], life: Life, index: int, chance: int) -> None:
    """Gives one life its share of the features, each to about half of the lives."""
    draws = space.draws
    changes: dict[str, object] = {}
    if common and chance & 1:
        changes["prompt"] = common[: 1 + (chance >> 4) % 12] + life.request.prompt[:8]
    if "stop" in on and chance & 2:
        # An answer can end early only on a token it may say: a few dozen ids make that likely.
        changes["stop"] = tuple(sorted(set(space.piece(space.vocabulary // 8, chance * 16))))
    if "deadline" in on and chance & 4:
        changes["deadline_s"] = 1 + draw(draws.some)
    if "ids" in on:
        changes["client_id"] = chance % 3
    if "cancel" in on and chance & 8:
        life.cancel_after = draw(draws.some)
    if "wait" in on and index and chance & 16:
        life.after = ((chance >> 5) % index, 1 + draw(draws.few))
    if changes:
        life.request = msgspec.structs.replace(life.request, **changes)


def _lengthen(draw: Draw, space: Space, lives: list[Life]) -> dict[str, Setting]:
    """Makes one life long: its prompt, or now and then its answer. Returns the settings that it needs."""
    life = lives[draw(space.draws.some) % len(lives)]
    length = draw(st.sampled_from(_LONG_PROMPT))
    if draw(space.draws.some) == 7:
        life.request = msgspec.structs.replace(life.request, max_new_tokens=length)
    else:
        life.request = msgspec.structs.replace(life.request, prompt=space.piece(length, draw(space.draws.choice)))
    fits = any(knob.name == "context_tokens_max" and LONG_TOKENS in knob.values for knob in space.knobs)
    return {"context_tokens_max": LONG_TOKENS} if fits else {}


def _turns(draw: Draw, space: Space, lives: list[Life]) -> list[Turn]:
    """A stretch of steps in which named lives advance one by one."""
    some = tuple({draw(space.draws.some) % len(lives) for _ in range(3)})
    return [Turn(start=1 + draw(space.draws.few), steps=2 + draw(space.draws.some), lives=some)]
