"""What the fuzzer's tests share: a failure of a planted fault, judged and ready to be stored."""

from __future__ import annotations

import functools

import pytest

from fuzz.conductor import run_trio
from fuzz.followup import Failure
from fuzz.judge import Judge
from fuzz.repro import Repro, make
from targets.faults import FAULTS
from targets.protocol import Kind, digest
from targets.registry import TargetSpec, build

SPEC = TargetSpec(faults=("late-token",))


@pytest.fixture(scope="session")
def repro() -> Repro:
    """The smallest known failure of `late-token`."""
    factory = build(SPEC)
    schedule = FAULTS["late-token"].smallest[Kind.LEAK]
    judgement = run_trio(functools.partial(Judge(factory).judge, thorough=True), schedule)
    failure = Failure(
        signature="LEAK swap: slot_reuse",
        site="",
        schedule=schedule,
        first=judgement.findings[0],
        finding=judgement.findings[0],
        evaluations=9,
        minimal=True,
        trace_digest=digest(judgement.trace),
        found_after=1,
        found_after_s=0.5,
    )
    return make(failure, SPEC, factory, 1e-9, seed=7)
