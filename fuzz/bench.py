"""Bench: slotfuzz measured against itself. Ratios within one run, because machines are shared and noisy."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from typing import Any

import msgspec
import torch

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from fuzz.strategies import Space, batches, schedules
from oracle.checks import ROUTINE
from oracle.finding import Report
from oracle.reference import Reference
from targets.protocol import CheckName, Factory, Request, Schedule, Setting, emitted_by_submission, submissions
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
    outside = judge.forwards().share_outside(seconds)
    assert outside is not None, "our own network is within reach"
    return {"tokens": tokens, "seconds": seconds, "outside": outside}


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
