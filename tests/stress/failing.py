"""Failures of planted faults, as repros."""

from __future__ import annotations

import time

from fuzz.conductor import run_trio
from fuzz.followup import FollowUp, Found
from fuzz.judge import Judge
from fuzz.repro import Repro, make
from oracle.checks import ROUTINE
from targets.faults import FAULTS
from targets.protocol import Kind
from targets.registry import TargetSpec, build


def repro_of(fault: str, kind: Kind) -> Repro:
    """The repro of a fault's smallest schedule."""
    spec = TargetSpec(faults=(fault,))
    factory = build(spec)
    judge = Judge(factory)
    schedule = FAULTS[fault].smallest[kind]

    async def follow() -> Repro:
        judgement = await judge.judge(schedule)
        finding = next(found for found in judgement.findings if found.kind is kind)
        up = FollowUp(judge, {}, ROUTINE, time.perf_counter)
        failure = await up.failure(finding, await up.site(judgement, finding), Found(schedule, 1, 0.0))
        assert failure is not None
        return make(failure, spec, factory, judge.reference({}).bound, 7)

    return run_trio(follow)
