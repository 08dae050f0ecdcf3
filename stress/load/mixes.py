"""Mixes: endless asks in which the fuzzer's own motifs return, the same for the same seed.

A motif is a story of a few lives that broke real engines: prompts that begin alike, turns of a session, cancels in every
state, unlike parameters. Here a user plays the lives of a story one after another, and the stories of others beside it.
`PARTY` users play the same stories at about the same time, so that what a motif puts side by side meets, and identical
prompts do. What the API can't say is left out of a request, and what could never be served out of a story.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from fuzz.strategies.dice import SIZE, Dice
from fuzz.strategies.lives import Life
from fuzz.strategies.motifs import (
    Motif,
    cancel_in_every_state,
    crowd,
    feature_comes_and_goes,
    identical_prompt_twice,
    join_mid_decode,
    longest_ends_first,
    many_answers,
    one_crosses_the_window,
    passages_in_another_order,
    session_goes_on,
    session_grows,
    shared_prefix_at_once,
    slot_reused_by_longer_then_shorter,
    unlike_parameters,
)
from fuzz.strategies.requests import Space
from stress.load.asks import Ask
from stress.load.plan import Feature, Plan
from targets.protocol.schedule import GREEDY, Request, Sampling

PARTY = 2
"""So many users play the same stories."""
STEP_S = 0.01
"""A cancel before the first token comes so long after the request for each step that the fuzzer would have waited."""
STORIES: dict[Feature, tuple[Motif, ...]] = {
    "lengths": (longest_ends_first, slot_reused_by_longer_then_shorter, join_mid_decode, crowd, one_crosses_the_window),
    "prefixes": (identical_prompt_twice, shared_prefix_at_once, passages_in_another_order),
    "sessions": (session_grows, session_goes_on),
    "cancels": (cancel_in_every_state, many_answers),
    "sampling": (feature_comes_and_goes, unlike_parameters),
}
LIVES_MAX = 16
"""No story has more."""
_WIDE = 1000


def stories(plan: Plan, party: int) -> Iterator[list[Ask]]:
    """The stories of one party of users, without end."""
    space = Space(vocabulary=plan.vocabulary, sampling="sampling" in plan.mix, shares=True)
    number = 0
    while True:
        dice = Dice(random.Random(f"{plan.seed} {party} {number}").randbytes(SIZE))
        motif = dice.pick(STORIES[dice.pick(plan.mix)])
        story = _story(plan, motif(dice, space), dice, number * LIVES_MAX)
        number += 1
        if story:
            yield story


def asks(plan: Plan, user: int) -> Iterator[Ask]:
    """What a user asks, without end."""
    for story in stories(plan, user // PARTY):
        yield from story


def _story(plan: Plan, lives: Sequence[Life], dice: Dice, first: int) -> list[Ask]:
    """The lives of a story by arrival, as far as they can be asked; their turns are numbered from `first` on."""
    order = sorted(range(len(lives)), key=lambda index: lives[index].arrival)
    found: list[Ask] = []
    for index in order:
        life = lives[index]
        request = _fitted(life.request, plan)
        before = None if life.before is None else first + life.before
        if request is None or (before is not None and not _is_heard_out(found, before)):
            continue
        cancel = life.cancel_after if "cancels" in plan.mix else None
        found.append(
            Ask(
                request=request,
                turn=first + index,
                before=before,
                hang_up_tokens=cancel or None,
                hang_up_s=STEP_S * (1 + dice.below(3)) if cancel == 0 else None,
                streamed=cancel is not None or dice.below(_WIDE) >= plan.whole_share * _WIDE,
            )
        )
    return found


def _is_heard_out(found: list[Ask], turn: int) -> bool:
    """Whether a turn was asked that will be heard to its end."""
    return any(ask.turn == turn and ask.hang_up_s is None and ask.hang_up_tokens is None for ask in found)


def _fitted(request: Request, plan: Plan) -> Request | None:
    """A request of a size that is served, with what the plan lets it ask; None where there is nothing left to ask."""
    prompt = request.prompt[: max(plan.context // 2, 1)]
    room = plan.context - len(prompt)
    answer = request.max_new_tokens if plan.answer_tokens is None else plan.answer_tokens
    if not prompt or max(prompt) >= plan.vocabulary or not request.max_new_tokens or room < 1:
        return None
    return msgspec.structs.replace(
        sayable(request, plan),
        prompt=prompt,
        max_new_tokens=min(answer, room),
        client_id=None,
        sample_of=None,
        continues=None,
        deadline_s=None,
    )


def sayable(request: Request, plan: Plan) -> Request:
    """The request less what the endpoint's dialect has no field for, and its numbers within what the fields take."""
    given = request.sampling
    sampling = Sampling(
        temperature=min(given.temperature, 2.0),
        seed=given.seed if given.temperature else 0,
        presence_penalty=_within(given.presence_penalty, 2),
        frequency_penalty=_within(given.frequency_penalty, 2),
        bias=tuple({token: _within(bias, 100) for token, bias in given.bias}.items()),
        logprobs=min(given.logprobs, 5),
    )
    if plan.prompts == "text":
        sampling = msgspec.structs.replace(sampling, bias=())
    if plan.dialect == "openai" or plan.prompts == "text":
        return msgspec.structs.replace(request, sampling=sampling, stop=(), stop_sequences=(), salt=None)
    sampling = msgspec.structs.replace(
        sampling,
        repetition_penalty=min(given.repetition_penalty, 10.0),
        allowed=tuple(dict.fromkeys(given.allowed)),
        min_new_tokens=min(given.min_new_tokens, request.max_new_tokens),
    )
    stop = () if sampling.allowed and set(sampling.allowed) <= set(request.stop) else tuple(dict.fromkeys(request.stop))
    salt = request.salt if plan.dialect == "slotfuzz" else None
    return msgspec.structs.replace(request, sampling=sampling, stop=stop, stop_sequences=(), salt=salt)


def plain(plan: Plan, user: int, prompt_tokens: int, new_tokens: int) -> Iterator[Ask]:
    """Greedy asks of one size, without end."""
    space = Space(vocabulary=plan.vocabulary)
    drawn = random.Random(f"{plan.seed} plain {user}")
    length = min(prompt_tokens, plan.context - 1)
    answer = min(new_tokens, plan.context - length)
    while True:
        prompt = space.piece(length, drawn.randrange(4096))
        yield Ask(request=Request(prompt=prompt, max_new_tokens=answer, sampling=GREEDY))


def _within(number: float, limit: float) -> float:
    return max(-limit, min(number, limit))
