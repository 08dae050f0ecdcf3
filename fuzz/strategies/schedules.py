"""Schedules: a mix of lives with a random set of features switched on (swarm), or a motif, with settings drawn beside.

Some are storms. Half of the others are motifs. In the rest each feature is on or off for the whole schedule, so that
features do not drown each other: a schedule without cancels reaches states that one full of them never does.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from fuzz.strategies.dice import Dice, dice
from fuzz.strategies.knobs import settings as knob_settings
from fuzz.strategies.lives import Life, Turn, to_ops
from fuzz.strategies.motifs import MOTIFS, MOTIFS_GUESSED, MOTIFS_POOLED, MOTIFS_SAMPLED, MOTIFS_SHARED, Motif
from fuzz.strategies.requests import Shape, Space
from fuzz.strategies.sampling import sampled
from fuzz.strategies.storms import storm
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
    "sampling",
    "salts",
)
"""Each is on in half of the schedules."""
STORM_ONE_IN = 6
"""One schedule in so many is a storm."""
LONG_ONE_IN = 18
"""One schedule in so many has a request of hundreds of tokens."""
LIMIT_ONE_IN = 12
"""One schedule in so many has an answer that runs into the limit of a context."""
_LONG_PROMPT = (500, 511, 512, 513, 700, 1000, 1023, 1024)
LONG_TOKENS = 1280
BLOCK_TOKENS = 32
"""In a block, where a target does not let it be set."""


def schedules(space: Space, swarm: bool = True, motifs: bool = True) -> st.SearchStrategy[Schedule]:
    """A schedule for a target with this space; without `swarm` or `motifs` only to measure what they are good for."""
    return dice().map(lambda drawn: schedule(drawn, space, swarm, motifs))


def schedule(dice: Dice, space: Space, swarm: bool = True, motifs: bool = True) -> Schedule:
    """Reads one schedule off the dice; without `swarm` every feature is on."""
    bits = dice.below(2 ** len(FEATURES)) if swarm else 2 ** len(FEATURES) - 1
    on = {name for index, name in enumerate(FEATURES) if bits >> index & 1}
    if motifs and dice.below(STORM_ONE_IN) == STORM_ONE_IN - 1:
        ops, settings = storm(dice, space)
        return Schedule(ops=ops, settings=settings)
    settings = knob_settings(dice, space.knobs) if "settings" in on else {}
    motif = dice.pick(_motifs(space)) if motifs and dice.below(2) else None
    lives = motif(dice, space) if motif else _mix(dice, space, on)
    if dice.below(LONG_ONE_IN) == LONG_ONE_IN - 1 and space.long:
        settings |= _lengthen(dice, space, lives)
    if motif in MOTIFS_POOLED and space.pooled:
        settings |= _short_pool(dice, space, lives)
    elif motif in MOTIFS_GUESSED:
        settings |= {"speculate": dice.pick(space.guesses)}
    elif "tiny-pool" in on:
        settings |= _tiny_pool(dice, space, lives)
    if dice.below(LIMIT_ONE_IN) == LIMIT_ONE_IN - 1:
        settings |= _limit(dice, space, lives)
    turns = [_turn(dice, lives)] if "rows" in on and space.rows else []
    if "sampling" in on and space.sampling:
        _sample(dice.more(), space, lives)
    if "salts" in on and space.salts:
        _salt(dice, lives)
    return Schedule(ops=to_ops(lives, turns), settings=settings)


def _motifs(space: Space) -> tuple[Motif, ...]:
    """Those that mean something to the target; what is special to it more often."""
    return (
        *MOTIFS,
        *(MOTIFS_SAMPLED if space.sampling else ()),
        *(MOTIFS_SHARED * 2 if space.shares else ()),
        *(MOTIFS_POOLED * 3 if space.pooled else MOTIFS_POOLED),
        *(MOTIFS_GUESSED * 3 if space.sampling and space.guesses else ()),
    )


def _tiny_pool(dice: Dice, space: Space, lives: list[Life]) -> dict[str, Setting]:
    """One slot or two; or, where there is a pool of pages, slots enough to crowd it."""
    if space.pooled and dice.below(4):
        return _short_pool(dice, space, lives)
    return {"slots": 1 + dice.below(2)} if "slots" in {knob.name for knob in space.knobs} else {}


def _short_pool(dice: Dice, space: Space, lives: list[Life]) -> dict[str, Setting]:
    """Slots enough to crowd a pool that is just enough for the largest request, some more, or too little.

    Or for all prompts, so that all begin and their answers push each other out. Half of the time in small pages: then each
    token of an answer may be the one for which there is no room, where in large ones a few requests end before that.
    """
    largest = max(len(life.request.prompt) + life.request.max_new_tokens for life in lives)
    prompts = max(largest, sum(len(life.request.prompt) + 1 for life in lives))
    rooms = (largest, largest + 4, largest + 16, largest * 3 // 2, largest - 2, largest * 3 // 4, prompts, prompts * 3 // 4)
    fine = dice.pick((None, 1, None, 4))
    if any(knob.name == "num_blocks" for knob in space.knobs):
        return _few_blocks(space, max(1, dice.pick(rooms)), fine)
    settings: dict[str, Setting] = {"slots": 8, "pool_tokens": max(1, dice.pick(rooms))}
    if fine is not None:
        settings["page_size"] = fine
    ways = next((knob.values for knob in space.knobs if knob.name == "preempt"), ())
    return {**settings, "preempt": dice.pick(ways)} if ways else settings


def _few_blocks(space: Space, room: int, fine: int | None) -> dict[str, Setting]:
    """As many blocks as hold so many tokens, for a target that counts its pool in blocks."""
    size = next((knob for knob in space.knobs if knob.name == "page_size"), None)
    settings: dict[str, Setting] = {}
    if size is not None:
        settings["page_size"] = int(size.default) if fine is None else max(fine, size.low or 1)
    tokens = int(settings.get("page_size", BLOCK_TOKENS))
    return {**settings, "num_blocks": max(1, -(-room // tokens))}


def _limit(dice: Dice, space: Space, lives: list[Life]) -> dict[str, Setting]:
    """A context that ends in the midst of the longest request's answer, its first token included."""
    longest = max((life.request for life in lives), key=lambda request: len(request.prompt) + request.max_new_tokens)
    limit = len(longest.prompt) + 1 + dice.below(max(1, longest.max_new_tokens - 1))
    bounds = next(((knob.low, knob.high) for knob in space.knobs if knob.name == "context_tokens_max"), (None, None))
    fits = bounds[0] is not None and bounds[1] is not None and bounds[0] <= limit <= bounds[1]
    return {"context_tokens_max": limit} if fits else {}


def _salt(dice: Dice, lives: list[Life]) -> None:
    """Gives half of the lives one of two salts."""
    for life in lives:
        salt = (None, None, 0, 1)[dice.below(4)]
        life.request = msgspec.structs.replace(life.request, salt=salt)


def _mix(dice: Dice, space: Space, on: set[str]) -> list[Life]:
    """Three to eight lives at random, with the features that are on."""
    lives: list[Life] = []
    now = 0
    common = space.piece(12, Shape.of(dice).place) if "shared-prefix" in on else ()
    for index in range(3 + dice.below(6)):
        shape = Shape.of(dice)
        life = Life(shape.request(space), arrival=now)
        _vary(dice, space, on, common, life, index, shape.chance)
        lives.append(life)
        if "burst" not in on:
            now += shape.gap
    return lives


def _vary(dice: Dice, space: Space, on: set[str], common: tuple[int, ...], life: Life, index: int, chance: int) -> None:
    """Gives one life its share of the features, each to about half of the lives."""
    changes: dict[str, object] = {}
    if common and chance & 1:
        changes["prompt"] = common[: 1 + (chance >> 4) % 12] + life.request.prompt[:8]
    if "stop" in on and chance & 2:
        # An answer can end early only on a token it may say: a few dozen ids make that likely.
        changes["stop"] = tuple(sorted(set(space.piece(space.vocabulary // 8, chance * 16))))
    if "deadline" in on and chance & 4:
        changes["deadline_s"] = 1 + dice.below(8)
    if "ids" in on:
        changes["client_id"] = chance % 3
    if "cancel" in on and chance & 8:
        life.cancel_after = dice.below(8)
    if "wait" in on and index and chance & 16:
        life.after = ((chance >> 5) % index, 1 + dice.below(4))
    if changes:
        life.request = msgspec.structs.replace(life.request, **changes)


def _sample(dice: Dice, space: Space, lives: list[Life]) -> None:
    """Gives about half of the lives parameters of their own; the others stay greedy beside them."""
    for life in lives:
        if dice.below(2):
            life.request = sampled(dice, space, life.request)


def _lengthen(dice: Dice, space: Space, lives: list[Life]) -> dict[str, Setting]:
    """Makes one life long: its prompt, or now and then its answer. Returns the settings that it needs."""
    life = lives[dice.below(8) % len(lives)]
    length = dice.pick(_LONG_PROMPT)
    if dice.below(8) == 7:
        life.request = msgspec.structs.replace(life.request, max_new_tokens=length)
    else:
        life.request = msgspec.structs.replace(life.request, prompt=space.piece(length, dice.below(65_536)))
    fits = any(knob.name == "context_tokens_max" and LONG_TOKENS in knob.values for knob in space.knobs)
    return {"context_tokens_max": LONG_TOKENS} if fits else {}


def _turn(dice: Dice, lives: list[Life]) -> Turn:
    """A stretch of steps in which up to three named lives advance one by one."""
    named = tuple(sorted({dice.below(len(lives)) for _ in range(3)}))
    return Turn(start=1 + dice.below(4), steps=2 + dice.below(8), lives=named)
