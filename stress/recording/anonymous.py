"""Anonymous: a repro whose tokens are others, so that it can be shown to strangers.

Every id without a meaning of its own goes through one bijection of the vocabulary, drawn by chance and kept nowhere: what
was equal stays equal, what was not does not become so, and lengths, order and settings stay. Special ids stay; stop,
allowed, bias and forced ids go along. Salts and clients' ids become 0, 1, 2, … in the order in which they come. What the
model answers is not mapped: the repro is judged again, and says what it finds.

A failure may need certain ids, as where an answer must run into a stop. So several bijections are tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from fuzz import repro as repros
from fuzz.followup import Failure, FollowUp
from fuzz.judge import Judge
from fuzz.repro import Repro
from oracle.case import Alphabet
from oracle.checks import ROUTINE
from targets.protocol import BadInput, Factory, Request, Schedule, with_requests

TRIES = 20


async def anonymous(repro: Repro, factory: Factory, judge: Judge, seed: int) -> Repro | None:
    """The repro under the first of several bijections under which it still fails in the same way; None where it never does.

    Args:
        seed: Of the bijections; whoever knows it can take them back.

    Raises:
        BadInput: where the repro does not fail as it is.
    """
    follow = FollowUp(judge, repro.schedule.settings, ROUTINE)
    wanted = repro.finding
    judgement = await judge.look_for(repro.schedule, wanted.kind, wanted.check)
    found = next((each for each in judgement.findings if (each.kind, each.check) == (wanted.kind, wanted.check)), None)
    if found is None:
        raise BadInput("REPRO", "one that fails", f"{repro.id}, which is fixed")
    site = await follow.site(judgement, found)
    for number in range(TRIES):
        moved = renamed(repro.schedule, judge.alphabet, random.Random(f"{seed} {number}"))
        last = await follow.examined(moved, wanted, site)
        if last is not None:
            failure = Failure(
                signature=last.signature,
                site=site,
                schedule=moved,
                first=last.finding,
                finding=last.finding,
                evaluations=repro.evaluations,
                minimal=repro.minimal,
                trace_digest=last.trace_digest,
                found_after=0,
                found_after_s=0.0,
            )
            return repros.make(failure, repro.target, factory, judge.reference(moved.settings).bound, 0)
    return None


def renamed(schedule: Schedule, alphabet: Alphabet, chance: random.Random) -> Schedule:
    """The schedule with every ordinary id put through a bijection, and salts and clients' ids counted from 0."""
    images = list(alphabet.ids)
    chance.shuffle(images)
    image = dict(zip(alphabet.ids, images, strict=True))
    salts: dict[int, int] = {}
    clients: dict[int, int] = {}
    return with_requests(
        schedule, lambda _, request: _renamed(request, lambda token: image.get(token, token), salts, clients)
    )


def _renamed(request: Request, image: Callable[[int], int], salts: dict[int, int], clients: dict[int, int]) -> Request:
    def ids(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(image, tokens))

    asked = request.sampling
    return msgspec.structs.replace(
        request,
        prompt=ids(request.prompt),
        stop=ids(request.stop),
        stop_sequences=tuple(map(ids, request.stop_sequences)),
        forced=ids(request.forced),
        salt=None if request.salt is None else salts.setdefault(request.salt, len(salts)),
        client_id=None if request.client_id is None else clients.setdefault(request.client_id, len(clients)),
        sampling=msgspec.structs.replace(
            asked, allowed=ids(asked.allowed), bias=tuple((image(token), added) for token, added in asked.bias)
        ),
    )
