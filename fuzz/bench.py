"""Bench: slotfuzz measured against itself. Ratios within one run, because machines are shared and noisy."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
import torch

from fuzz.conductor import run_trio
from fuzz.followup import Failure
from fuzz.judge import Judge
from fuzz.search import Limits, Search, Tally
from fuzz.shrink import sort_key
from fuzz.stage import InProcess
from fuzz.strategies import Space, batches, schedules
from oracle.checks import ROUTINE
from oracle.finding import Report
from oracle.reference import Reference
from targets.faults import Fault
from targets.protocol import CheckName, Factory, Kind, Request, Schedule, Setting, emitted_by_submission, submissions
from targets.registry import TargetSpec, build

WORKLOAD_SEED = 0
_WARM_UP = 20
_WARM_UP_IN_TURN = 3


def speed(count: int) -> dict[str, float]:
    """Tokens checked a second in float64 on one thread, with and without the swap, on a fixed workload.

    The workload is the first `count` schedules that the default strategies draw from seed 0.
    """
    factory = build(TargetSpec())
    workload = list(itertools.islice(batches(schedules(Space.of(factory)), WORKLOAD_SEED), count))
    requests = [request for schedule in workload for request in submissions(schedule)]
    judged = _judged(factory, workload, ROUTINE)
    unswapped = _judged(factory, workload, [name for name in ROUTINE if name is not CheckName.SWAP])
    alone_s, generate_s, tokens = _alone(factory, requests[: 2 * count])
    return {
        "schedules": float(count),
        "requests a schedule": len(requests) / count,
        "new tokens asked a schedule": sum(request.max_new_tokens for request in requests) / count,
        "tokens a second, reference only": unswapped["tokens"] / unswapped["seconds"],
        "tokens a second, with the swap": judged["tokens"] / judged["seconds"],
        "share outside forwards, reference only": unswapped["outside"],
        "share outside forwards, with the swap": judged["outside"],
        "reference tokens a second": tokens / alone_s,
        "generate() tokens a second": tokens / generate_s,
        "reference against generate()": generate_s / alone_s,
    }


def sanitizing(count: int) -> dict[str, float]:
    """What `--sanitize` costs, on the first `count` schedules that the default strategies draw from seed 0.

    Each schedule is judged plain and sanitized in turn, so that a machine's noise falls on both alike.
    """
    factory = build(TargetSpec())
    ways: dict[str, tuple[dict[str, Setting], tuple[CheckName, ...]]] = {
        "plain": ({}, ROUTINE),
        "sanitized": ({"sanitize": True}, ROUTINE),
        "sanitized, without residue": (
            {"sanitize": True},
            tuple(name for name in ROUTINE if name is not CheckName.RESIDUE),
        ),
    }
    judges = {name: Judge(factory) for name in ways}
    seconds = dict.fromkeys(ways, 0.0)
    report = Report()

    async def work(schedule: Schedule) -> None:
        for name, (settings, checks) in ways.items():
            started = time.perf_counter()
            asked = msgspec.structs.replace(schedule, settings={**schedule.settings, **settings})
            judgement = await judges[name].judge(asked, checks)
            seconds[name] += time.perf_counter() - started
            if name == "sanitized":
                report.add(judgement.report)

    workload = itertools.islice(batches(schedules(Space.of(factory)), WORKLOAD_SEED), _WARM_UP_IN_TURN + count)
    for number, schedule in enumerate(workload):
        if number == _WARM_UP_IN_TURN:
            judges["plain"].begin()
            seconds, report = dict.fromkeys(ways, 0.0), Report()
        run_trio(work, schedule)
    return {
        "schedules": float(count),
        "milliseconds a schedule, plain": 1000 * seconds["plain"] / count,
        "milliseconds a schedule, sanitized": 1000 * seconds["sanitized"] / count,
        "sanitized against plain": seconds["sanitized"] / seconds["plain"],
        "sanitized without residue against plain": seconds["sanitized, without residue"] / seconds["plain"],
        "cells looked at a schedule": report.cells / count,
        "poisoned replays compared": float(report.poisoned),
        "findings": float(len(report.findings)),
    }


class Trial(msgspec.Struct, frozen=True):
    """One fault and one seed: the first rightful failure of a search, shrunk.

    Attributes:
        schedules: Until it was found; None if it was not.
        kind, check, site: What it came out as.
        kind_first: What it was called before it was shrunk.
        right_first, right: Whether every failure up to there had a kind that the fault declares, before it was shrunk and
            after; a minimal schedule that passed when it was judged again is none.
        source_right: Whether the neighbour that is named is the one whose content came across. Known without any swap where
            the minimal schedule has two requests, for then it is the other one; None where it has more, or is no leak.
        wrong: Signatures of other failures on the way: a kind or a check that the fault does not declare.
        requests, tokens: Size of the minimal schedule, and over the smallest known one of that kind.
    """

    fault: str
    seed: int
    schedules: int | None
    seconds: float
    kind: str = ""
    check: str = ""
    site: str = ""
    kind_first: str = ""
    right_first: bool = False
    right: bool = False
    source_right: bool | None = None
    wrong: tuple[str, ...] = ()
    evaluations: int = 0
    minimal: bool = False
    requests: int = 0
    tokens: int = 0
    requests_over: int = 0
    tokens_over: int = 0


def shrinking(faults: Iterable[Fault], seeds: Iterable[int], schedules_max: int, dtype: str = "float64") -> Iterator[Trial]:
    """Each fault alone, in one dtype: how soon it is found, what it shrinks to, and what that took."""
    for fault, seed in itertools.product(faults, seeds):
        spec = TargetSpec(model=fault.models[0], faults=(fault.name,))
        factory = build(spec)
        stage = InProcess(factory, functools.partial(build, spec))
        settings = dict(fault.settings) if dtype == "float64" else {**fault.settings, "dtype": dtype}
        search = Search(factory, seed, Limits(schedules=schedules_max), settings, stage=stage)
        search.enough = functools.partial(_is_rightful, fault)
        started = time.perf_counter()
        tally = run_trio(search.run)
        yield trial_of(fault, seed, tally, time.perf_counter() - started)


def _is_rightful(fault: Fault, failure: Failure) -> bool:
    return failure.finding.kind in fault.kinds and failure.finding.check in fault.checks


def trial_of(fault: Fault, seed: int, tally: Tally, seconds: float) -> Trial:
    """What a search that ended with the first rightful failure says of a fault."""
    wrong: list[str] = []
    kinds = [(failure.first.kind, failure.finding.kind) for failure in tally.failures]
    for failure in tally.failures:
        finding = failure.finding
        if not _is_rightful(fault, failure):
            wrong.append(failure.signature)
            continue
        size, known = sort_key(failure.schedule), sort_key(fault.smallest[finding.kind])
        return Trial(
            fault=fault.name,
            seed=seed,
            schedules=failure.found_after,
            seconds=seconds,
            kind=finding.kind,
            check=finding.check,
            site=failure.site,
            kind_first=failure.first.kind,
            right_first=all(first in fault.kinds for first, _ in kinds),
            right=all(last in fault.kinds for _, last in kinds) and not tally.unstable,
            source_right=_source_right(failure),
            wrong=tuple(wrong),
            evaluations=failure.evaluations,
            minimal=failure.minimal,
            requests=size[0],
            tokens=size[1],
            requests_over=size[0] - known[0],
            tokens_over=size[1] - known[1],
        )
    return Trial(fault=fault.name, seed=seed, schedules=None, seconds=seconds, wrong=tuple(wrong))


def _source_right(failure: Failure) -> bool | None:
    """Whether the only neighbour there is is the one that is named; None where there are several, or nothing leaked."""
    finding = failure.finding
    if finding.kind is not Kind.LEAK or len(submissions(failure.schedule)) != 2:
        return None
    return {finding.submission, *finding.sources} == {0, 1} and len(finding.sources) == 1


def _judged(factory: Factory, workload: list[Schedule], checks: Collection[CheckName]) -> dict[str, float]:
    """Judges the workload once; generating it is part of the time, as in a run."""
    judge = Judge(factory)

    async def work(count: int) -> int:
        tokens = 0
        generated = batches(schedules(Space.of(factory)), WORKLOAD_SEED)
        for schedule in itertools.islice(generated, count):
            trace = (await judge.judge(schedule, checks)).trace
            tokens += sum(len(events) for events in emitted_by_submission(trace).values())
        return tokens

    run_trio(work, _WARM_UP)
    judge.begin()
    started = time.perf_counter()
    tokens = run_trio(work, len(workload))
    seconds = time.perf_counter() - started
    return {"tokens": tokens, "seconds": seconds, "outside": judge.share_outside(seconds)}


def _alone(factory: Factory, requests: list[Request]) -> tuple[float, float, int]:
    """Seconds for the reference and for `generate()` to answer the same requests one by one, and the tokens of it."""
    network: Any = factory.network({})
    network.generation_config.eos_token_id = None
    answers: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    generate_s = 0.0
    for request in requests:
        if not request.prompt or max(request.prompt) >= factory.vocabulary or not 0 < request.max_new_tokens < 100:
            continue
        ids = torch.tensor(request.prompt)[None]
        started = time.perf_counter()
        whole = network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.max_new_tokens, do_sample=False
        )
        generate_s += time.perf_counter() - started
        answers.append((request.prompt, tuple(whole[0, len(request.prompt) :].tolist())))
    reference = Reference(network)
    started = time.perf_counter()
    for prompt, answer in answers:
        reference.logits(prompt, answer)
    alone_s = time.perf_counter() - started
    return alone_s, generate_s, sum(len(answer) for _, answer in answers)
