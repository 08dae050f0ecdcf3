"""Motifs: schedules of the shapes that broke real engines, with everything else left to chance.

Each takes dice and a space, and returns lives. The numbers are those of the motifs list that the project was
built on: what the public bug reports of twenty engines have in common.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fuzz.strategies.dice import Dice
from fuzz.strategies.lives import Life
from fuzz.strategies.requests import ANSWERS, Shape, Space
from fuzz.strategies.sampling import extreme, sampled
from targets.protocol import Request, Sampling

Motif = Callable[[Dice, Space], list[Life]]


def _request(dice: Dice, space: Space, length: int | None = None, answer: int | None = None) -> Request:
    """A request of any shape, but for what the motif fixes."""
    shape = Shape.of(dice)
    return Request(
        prompt=space.piece(shape.length if length is None else length, shape.place),
        max_new_tokens=shape.answer if answer is None else answer,
    )


def identical_prompt_twice(dice: Dice, space: Space) -> list[Life]:
    """1, 11: the same prompt cold, then beside itself in one step, then again later."""
    one = _request(dice, space)
    again = msgspec.structs.replace(one, max_new_tokens=dice.pick(ANSWERS))
    gap = dice.below(8)
    return [Life(one), Life(again, arrival=dice.below(4)), Life(_request(dice, space)), Life(one, arrival=3 + gap)]


def shared_prefix_at_once(dice: Dice, space: Space) -> list[Life]:
    """11: prompts that begin alike and go on differently, admitted in one step; and one more of them later."""
    prefix = _request(dice, space, length=1 + dice.below(8) * 3).prompt
    lives = []
    for index in range(3):
        tail = _request(dice, space, length=1 + dice.below(8))
        whole = msgspec.structs.replace(tail, prompt=prefix + tail.prompt)
        lives.append(Life(whole, arrival=0 if index < 2 else dice.below(8)))
    return [*lives, Life(_request(dice, space))]


def longest_ends_first(dice: Dice, space: Space) -> list[Life]:
    """3: the longest row leaves while shorter ones go on."""
    others = [Life(_request(dice, space, answer=4 + dice.below(8)), arrival=dice.below(4)) for _ in range(3)]
    place = dice.below(4)
    others.insert(place, Life(_request(dice, space, length=36 + place, answer=1 + dice.below(4))))
    return others


def slot_reused_by_longer_then_shorter(dice: Dice, space: Space) -> list[Life]:
    """4: a short request ends, a longer one takes its slot at once, then a shorter one."""
    lengths = (2 + dice.below(4), 12 + dice.below(8), 1 + dice.below(4))
    lives = [Life(_request(dice, space, length, 1 + dice.below(4)), arrival=index) for index, length in enumerate(lengths)]
    return [*lives, Life(_request(dice, space, answer=10), arrival=0)]


def join_mid_decode(dice: Dice, space: Space) -> list[Life]:
    """6: somebody joins, and somebody leaves, while a neighbour is in the middle of its answer."""
    return [
        Life(_request(dice, space, answer=12)),
        Life(_request(dice, space, answer=2), arrival=1),
        Life(_request(dice, space), arrival=3 + dice.below(4)),
        Life(_request(dice, space), arrival=5 + dice.below(4)),
    ]


def cancel_in_every_state(dice: Dice, space: Space) -> list[Life]:
    """8: a cancel when queued, after the first token, in the middle, on the last step, and of all at once."""
    lives = []
    for index in range(5):
        request = _request(dice, space, answer=4)
        lives.append(Life(request, arrival=index // 2, cancel_after=dice.below(4) + index % 3))
    return [*lives, Life(_request(dice, space), arrival=1), Life(_request(dice, space), arrival=4)]


def id_reused(dice: Dice, space: Space) -> list[Life]:
    """9: an id taken again at once after its cancel or its end, and two live requests with one id."""
    named = msgspec.structs.replace(_request(dice, space, answer=5), client_id=1)
    again = msgspec.structs.replace(_request(dice, space, answer=4), client_id=1)
    end, later = 1 + dice.below(3), dice.below(16)
    return [
        Life(named, cancel_after=end if later > 3 else None),
        Life(again, arrival=end if later > 7 else later),
        Life(_request(dice, space)),
        Life(msgspec.structs.replace(_request(dice, space), client_id=1), arrival=5),
    ]


def extremes(dice: Dice, space: Space) -> list[Life]:
    """10, 13: what can never be served, and the smallest things that can, beside ordinary requests."""
    impossible = (
        Request(prompt=(), max_new_tokens=4),
        Request(prompt=(space.vocabulary,), max_new_tokens=4),
        Request(prompt=space.piece(1300, 0), max_new_tokens=2),
        Request(prompt=space.piece(5, 5), max_new_tokens=0),
    )[dice.below(4)]
    return [
        Life(_request(dice, space)),
        Life(impossible, arrival=1),
        Life(_request(dice, space, length=1, answer=1), arrival=1),
        Life(_request(dice, space), arrival=dice.below(4)),
    ]


def idle_then_first(dice: Dice, space: Space) -> list[Life]:
    """14: the target idles, serves a burst, idles again, serves another."""
    later = 24 + dice.below(8)
    return [Life(_request(dice, space), arrival=1 + index % 2) for index in range(3)] + [
        Life(_request(dice, space), arrival=later + index) for index in range(2)
    ]


def crowd(dice: Dice, space: Space) -> list[Life]:
    """10: far more requests than slots, all at once, short and long mixed."""
    return [Life(_request(dice, space, answer=1 + (index * 3) % 7), arrival=index // 6) for index in range(8)]


def outgrow_the_pool(dice: Dice, space: Space) -> list[Life]:
    """8, 10: prompts that fit beside each other and answers that do not, all the way through.

    Some have a sampler's state, and in half of the schedules some are cancelled, wherever they then are.
    """
    answer = 16 + dice.below(9)
    lives = [Life(_request(dice, space, 6 + dice.below(12), answer), arrival=index // 3) for index in range(7)]
    drawn = dice.more()
    for life in lives[dice.below(4) :: 2] if space.sampling else ():
        life.request = sampled(drawn, space, life.request)
    for life in lives[2::2] if dice.below(2) else ():
        life.cancel_after = 4 + drawn.below(24)
    return lives


def one_crosses_the_window(dice: Dice, space: Space) -> list[Life]:
    """5, 7: one answer runs over a multiple of 16, where windows, pages and chunks end, and the others do not."""
    before = 16 * (1 + dice.below(2)) - 1 - dice.below(5)
    return [
        Life(_request(dice, space, before, 8 + dice.below(8))),
        Life(_request(dice, space, 1 + dice.below(4), 6), arrival=dice.below(2)),
        Life(_request(dice, space, before + 16 + dice.below(3), 6), arrival=dice.below(2)),
        Life(_request(dice, space), arrival=2 + dice.below(4)),
    ]


def session_grows(dice: Dice, space: Space) -> list[Life]:
    """2: each turn goes on from the one before; then an early one is asked again, and with another first or last token."""
    turn = _request(dice, space, length=1 + dice.pick((3, 7, 15, 16, 30)), answer=1 + dice.below(4))
    lives, now = [Life(turn)], 0
    for _ in range(3):
        now += 1 + dice.below(6)
        more = _request(dice, space, length=1 + dice.below(12), answer=1 + dice.below(4))
        lives.append(Life(msgspec.structs.replace(more, prompt=lives[-1].request.prompt + more.prompt), arrival=now))
    early = lives[dice.below(2)].request
    token = space.piece(1, dice.below(4096))
    changed = early.prompt[:-1] + token if dice.below(2) else token + early.prompt[1:]
    other = msgspec.structs.replace(early, prompt=changed)
    again = [Life(early, arrival=now + 1 + dice.below(3)), Life(other, arrival=now + 1 + dice.below(3))]
    return [*lives, *again, Life(_request(dice, space), arrival=dice.below(4))]


def session_goes_on(dice: Dice, space: Space) -> list[Life]:
    """2: each turn brings the last one's prompt and answer, and more: when that has ended, or before; then a turn again."""
    lives = [Life(_request(dice, space, length=1 + dice.pick((0, 3, 7, 13, 14, 15, 28)), answer=1 + dice.below(8)))]
    for turn in range(3):
        answer = lives[-1].request.max_new_tokens
        more = _request(dice, space, length=1 + dice.below(6), answer=1 + dice.below(8))
        heard = answer if dice.below(4) else 1 + dice.below(answer)
        lives.append(Life(more, arrival=turn + dice.below(2), after=(turn, heard), before=turn))
    turn, again = dice.below(3), _request(dice, space, length=1 + dice.below(3))
    return [*lives, Life(again, arrival=4, before=turn), Life(_request(dice, space), arrival=dice.below(4))]


def passages_in_another_order(dice: Dice, space: Space) -> list[Life]:
    """2, 11: passages as long as pages are, in one order, then in others and alone: the same tokens behind others."""
    size = dice.pick((16, 32, 16, 8, 4))
    passages = [space.piece(size, dice.below(4096)) for _ in range(3)]
    lives, now = [], 0
    for order in ((0, 1), (1, 2), (1,), (0, 2), (2, 1, 0)):
        more = _request(dice, space, length=1 + dice.below(4), answer=1 + dice.below(6))
        prompt = sum((passages[which] for which in order), ())
        lives.append(Life(msgspec.structs.replace(more, prompt=prompt + more.prompt), arrival=now))
        now += dice.below(4)
    return lives


def many_answers(dice: Dice, space: Space) -> list[Life]:
    """14: several answers to one prompt, that end apart, with another prompt beside them; once more when they have ended."""
    asked = _request(dice, space, length=dice.pick((2, 5, 15, 16, 17, 20, 33)), answer=4 + dice.below(6))
    lives = [Life(asked)]
    for _ in range(2 + dice.below(2)):
        again = msgspec.structs.replace(asked, max_new_tokens=1 + dice.below(10))
        lives.append(Life(again, arrival=dice.below(3), sibling=0))
    cancelled = Life(asked, arrival=1, cancel_after=1 + dice.below(4), sibling=0)
    return [*lives, cancelled, Life(_request(dice, space), arrival=dice.below(3)), Life(asked, arrival=12, sibling=0)]


def unlike_parameters(dice: Dice, space: Space) -> list[Life]:
    """13: parameters as unlike as can be in one batch, at their extremes, beside a plain request."""
    plain, drawn = Life(_request(dice, space), arrival=dice.below(3)), dice.more()
    others = [Life(extreme(drawn, space, _request(drawn, space)), arrival=drawn.below(3)) for _ in range(4)]
    return [plain, *others]


def feature_comes_and_goes(dice: Dice, space: Space) -> list[Life]:
    """3: a row with parameters of its own leaves, stays or joins, and the rows that do otherwise have none."""
    leaver, joiner = dice.below(3), 3
    stayers = {0, 1, 2} - {leaver}
    with_parameters = dice.pick((stayers, {leaver}, {joiner}, {leaver, joiner}))
    drawn = dice.more()
    left_after = 1 + drawn.below(4)
    lives = []
    for index in range(4):
        request = _request(drawn, space, answer=left_after if index == leaver else 8 + drawn.below(4))
        request = sampled(drawn, space, request) if index in with_parameters else request
        lives.append(Life(request, arrival=left_after + drawn.below(2) if index == joiner else 0))
    return lives


def few_words(dice: Dice, space: Space) -> list[Life]:
    """Answers of one to three ids, of which their prompts are made: what they will say can be guessed, now and then rightly.

    Some are cancelled; when the first one has ended another comes, and goes on from it where that may have left something.
    """
    lives = []
    for index in range(3 + dice.below(2)):
        words = space.piece(1 + dice.below(3), dice.below(4096))
        length, turned = dice.pick((1, 2, 3, 4, 7, 15, 16, 17)), dice.below(3)
        request = Request(
            prompt=(words * (length + turned))[turned : turned + length],
            max_new_tokens=3 + dice.below(14),
            sampling=Sampling(allowed=tuple(sorted(set(words)))),
        )
        cancel = 1 + dice.below(6) if index and dice.below(4) == 0 else None
        lives.append(Life(request, arrival=dice.below(4) if index else 0, cancel_after=cancel))
    turn = _request(dice, space, length=1 + dice.below(3), answer=1 + dice.below(6))
    goes_on = 0 if space.shares else None
    return [*lives, Life(turn, arrival=4, after=(0, lives[0].request.max_new_tokens), before=goes_on)]


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
    one_crosses_the_window,
)
MOTIFS_SAMPLED: tuple[Motif, ...] = (unlike_parameters, feature_comes_and_goes)
"""For targets that honour sampling."""
MOTIFS_SHARED: tuple[Motif, ...] = (session_grows, session_goes_on, many_answers, passages_in_another_order)
"""For targets in which requests that begin alike share cached state."""
MOTIFS_POOLED: tuple[Motif, ...] = (outgrow_the_pool,)
"""For targets with a pool of pages, which is then small as well."""
MOTIFS_GUESSED: tuple[Motif, ...] = (few_words,)
"""For targets that may guess what an answer will say."""
