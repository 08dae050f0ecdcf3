"""Bisection: the experiments that people do by hand when a KV cache mixes requests up, each a schedule or two.

Cache off, then which request, which layer and head, then view or copy; beside them one request a step (a batch effect goes,
what is shared over time stays) and all prompts at one length (what comes of padding goes). Each says how it came out, or why
it could not be done.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fuzz.edits import keep_requests
from fuzz.judge import Judge
from fuzz.locate import ATTENDED, Located
from oracle.diagnose import serialised
from oracle.finding import Finding
from oracle.where import Part
from targets.protocol import (
    Admitted,
    CheckName,
    Finished,
    Request,
    Schedule,
    Trace,
    submissions,
    with_requests,
)

ONE_A_STEP, ONE_LENGTH = "one request a step", "prompts of one length"


@dataclass(frozen=True)
class Outcome:
    """One experiment. `gone` says whether the failure was gone in it; None where that is not what it asks."""

    name: str
    sentence: str
    gone: bool | None = None


async def bisect(judge: Judge, schedule: Schedule, finding: Finding, located: Located) -> list[Outcome]:
    """Every experiment that there is something to do for, in the order in which they narrow it down."""
    outcomes = [await cache_off(judge, schedule, finding)] if finding.kind in ATTENDED else []
    outcomes += await which_request(judge, schedule, finding)
    outcomes += layer_and_head(located) if finding.kind in ATTENDED else []
    if located.where is not None and located.where.part in (Part.LENGTH, Part.KEYS, Part.VALUES):
        outcomes.append(view_or_copy(located))
    if len(submissions(schedule)) > 1:
        outcomes += [await one_a_step(judge, schedule, finding), await one_length(judge, schedule, finding)]
    return outcomes


async def cache_off(judge: Judge, schedule: Schedule, finding: Finding) -> Outcome:
    """The victim alone, with the cache, against the forward without one."""
    if finding.submission is None:
        return Outcome("cache off", "not done: the finding names no request")
    lone = keep_requests(schedule, {finding.submission})
    judgement = await judge.judge(lone, [CheckName.ISOLATION])
    if judgement.crashed_checks or judgement.report.unknown:
        return Outcome("cache off", "undecided: the request alone can't be compared with a forward without a cache")
    who = f"request #{finding.submission}"
    if judgement.findings:
        return Outcome("cache off", f"alone, {who} departs from the forward without a cache: nobody else is needed", False)
    return Outcome("cache off", f"alone, {who} equals the forward without a cache: somebody else is needed", True)


async def which_request(judge: Judge, schedule: Schedule, finding: Finding) -> list[Outcome]:
    """The victim with one other request at a time."""
    victim, count = finding.submission, len(submissions(schedule))
    if victim is None or count < 2:
        return []
    if count == 2:
        return [Outcome("request", f"#{1 - victim} is the only other one")]
    enough = []
    for other in range(count):
        pair = keep_requests(schedule, {victim, other})
        if other != victim and await judge.same(pair, finding.kind, finding.check) is not None:
            enough.append(f"#{other}")
    if enough:
        return [Outcome("request", f"it still fails with only {' or '.join(enough)} beside #{victim}")]
    return [Outcome("request", f"no single other request is enough: it takes more than one beside #{victim}")]


def layer_and_head(located: Located) -> list[Outcome]:
    """The first layer and head that depart; everything before them agrees."""
    where = located.where
    if where is None:
        return [Outcome("layer, head", f"not known: {located.why}")]
    if where.layer is None:
        return [Outcome("layer, head", f"none: it departs outside the attention ({where.part})")]
    before = "it is the first" if where.layer == 0 else f"layers 0..{where.layer - 1} agree"
    head = "" if where.head is None else f", head {where.head}"
    return [Outcome("layer, head", f"layer {where.layer}{head} ({before}): {where.part}")]


def view_or_copy(located: Located) -> Outcome:
    """Whether two requests' cells are in one place."""
    shared = None if located.where is None else located.where.shared
    if shared is None:
        return Outcome("view or copy", "not known: the target does not show its cells, or never runs two requests together")
    if shared:
        return Outcome("view or copy", "two requests that run together have cells in common: a view, or one store for both")
    return Outcome("view or copy", "two requests that come together to a fresh target have cells of their own")


async def one_a_step(judge: Judge, schedule: Schedule, finding: Finding) -> Outcome:
    """The same with one request a step."""
    if not judge.factory.control.rows:
        return Outcome(ONE_A_STEP, "not done: the target does not let a step name its rows")
    if await judge.same(serialised(schedule), finding.kind, finding.check) is None:
        return Outcome(ONE_A_STEP, "gone: it takes requests that are in one step together", True)
    return Outcome(ONE_A_STEP, "it stays: what is shared is shared over time, and a lock would not help", False)


async def one_length(judge: Judge, schedule: Schedule, finding: Finding) -> Outcome:
    """The same with all prompts at one length."""
    cut = level(schedule)
    if cut == schedule:
        return Outcome(ONE_LENGTH, "not done: they are of one length as it is")
    if await judge.same(cut, finding.kind, finding.check) is None:
        return Outcome(ONE_LENGTH, "gone: it takes prompts of unequal length", True)
    return Outcome(ONE_LENGTH, "it stays: it is not the padding", False)


def level(schedule: Schedule) -> Schedule:
    """The schedule with every prompt cut to the length of the shortest that is not empty."""
    shortest = min((len(request.prompt) for request in submissions(schedule) if request.prompt), default=0)

    def cut(_: int, request: Request) -> Request:
        return msgspec.structs.replace(request, prompt=request.prompt[:shortest])

    return with_requests(schedule, cut)


def is_past(trace: Trace, finding: Finding) -> bool | None:
    """Whether all the sources of a leak had ended before the victim was admitted.

    None where none is named, or where the victim was admitted more than once and it is so of some of these times only.
    """
    if not finding.sources or finding.submission is None:
        return None
    ended: set[int] = set()
    past: set[bool] = set()
    for event in trace:
        if isinstance(event, Finished):
            ended.add(event.submission)
        elif isinstance(event, Admitted) and event.submission == finding.submission:
            past.add(ended.issuperset(finding.sources))
    return past.pop() if len(past) == 1 else None
