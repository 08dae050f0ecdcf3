"""Examining: what experiments make of responses that are not right, after all were judged."""

from __future__ import annotations

import time

import msgspec
import trio

from fuzz import repro as repros
from fuzz.conductor import replay, run_trio
from stress.judging.asked import Verifying
from stress.judging.asking import endpoint
from stress.judging.following import Following, decoded
from stress.judging.ledger import Ledger
from stress.judging.opinion import Opinion, Standing
from stress.judging.panel import judge_of
from stress.recording.account import read_lives
from stress.recording.logical import timed
from stress.recording.over_http import TRIES, OverHttp, store
from stress.recording.repros import Found, Reproducer, in_turn
from stress.transcript import Exchange

SUSPECTS_S = 120.0
"""For so long suspects are decided by experiment, one after another; the others stay undecided."""
BLAMELESS = (Standing.RIGHT, Standing.UNJUDGED, Standing.UNREACHED)
VICTIMS_MAX = 3
"""So many wrong responses are looked for at an endpoint that is all there is."""


def examine(asked: Verifying, following: Following, ledger: Ledger, found: Found) -> None:
    """Experiments: suspects are decided, wrong and lost responses are made repros of, and the ledger is told.

    Args:
        found: Is told as things are found, so that what was found stands there even if no more may be.
    """
    opinions = list(ledger.opinions.values())
    if all(opinion.standing in BLAMELESS for opinion in opinions) and not following.open:
        return
    heard = heard_by_name(following)
    if not asked.foreign:
        _in_process(asked, heard, opinions, following, found)
    ledger.add(changed for opinion in opinions if (changed := _decided(opinion, found)) != opinion)
    if asked.url is not None:
        trio.run(_over_http, asked, heard, list(ledger.opinions.values()), found)


def _in_process(
    asked: Verifying, heard: dict[tuple[str, int], Exchange], opinions: list[Opinion], following: Following, found: Found
) -> None:
    """Replays in this process, which takes a target of the kind that was served."""
    lives = None if asked.account is None else list(read_lives(asked.account))
    reproducer = Reproducer(asked.spec, asked.factory, asked.settings, asked.folder, heard, lives, found)
    run_trio(_look_into, reproducer, opinions, following, asked.repros_max)


async def _over_http(
    asked: Verifying, heard: dict[tuple[str, int], Exchange], opinions: list[Opinion], found: Found
) -> None:
    """Asks the live endpoint for every repro again; where there can be none, for the wrong responses themselves."""
    assert asked.url is not None, "somebody is asked"
    judge = judge_of(asked.spec, asked.factory, asked.settings, asked.foreign)
    bad = (Standing.WRONG, Standing.SUSPECT)
    async with endpoint(asked.url, asked.api_key, asked.dialect) as served:
        over = OverHttp(served, lambda exchange: judge.judge("", exchange).standing in bad)
        for place, stored in enumerate(found.stored):
            schedule = repros.load(asked.folder / stored.path).schedule
            trace = await trio.to_thread.run_sync(replay, asked.factory, schedule)
            wrong = await over.shows(timed(schedule, trace), TRIES)
            found.stored[place] = msgspec.structs.replace(stored, http_wrong=wrong, http_tries=TRIES)
        if asked.foreign:
            wrong_ones = [opinion for opinion in opinions if opinion.standing in bad]
            victims = [(opinion.source, heard[opinion.name]) for opinion in in_turn(wrong_ones, VICTIMS_MAX)]
            others = list(heard.values())
            found.schedules += await store(over, victims, others, asked.folder, asked.repros_max)


async def _look_into(reproducer: Reproducer, opinions: list[Opinion], following: Following, repros_max: int) -> None:
    """Suspects first: what they are decides what is wrong."""
    sent = {name: exchange.sent_s for name, exchange in reproducer.heard.items()}
    opinions = sorted(opinions, key=lambda opinion: sent[opinion.name])
    until = time.monotonic() + SUSPECTS_S
    for opinion in opinions:
        if opinion.standing is Standing.SUSPECT and time.monotonic() < until:
            await reproducer.decide(opinion, until)
    silent = [
        Opinion(source=source, number=number, outcome="begun", standing=Standing.LOST) for source, number in following.open
    ]
    wrong = [each for each in opinions if _decided(each, reproducer.found).standing is Standing.WRONG]
    lost = [each for each in (*opinions, *silent) if each.standing is Standing.LOST]
    await reproducer.run([*wrong, *lost], repros_max)


def _decided(opinion: Opinion, found: Found) -> Opinion:
    """The opinion after the experiments."""
    kind = found.kinds.get(opinion.name)
    if opinion.name in found.refuted and opinion.standing is Standing.SUSPECT:
        return msgspec.structs.replace(opinion, standing=Standing.RIGHT, complaints=())
    if kind is None or opinion.standing is Standing.LOST:
        return opinion
    first, *more = opinion.complaints
    named = first if first.kind is not None else msgspec.structs.replace(first, kind=kind)
    return msgspec.structs.replace(opinion, standing=Standing.WRONG, complaints=(named, *more))


def heard_by_name(following: Following) -> dict[tuple[str, int], Exchange]:
    """All that was heard, by the request's name; of what nothing was heard, that it was asked."""
    found = {(response.source, response.number): decoded(response.raw).exchange for response in following.again()}
    for name, begun in following.open.items():
        found[name] = Exchange(
            number=begun.number,
            user=begun.user,
            request=begun.request,
            sent_s=begun.sent_s,
            ended_s=max(following.last_s, begun.sent_s),
            outcome="cut",
        )
    return found
