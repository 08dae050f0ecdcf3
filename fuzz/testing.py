"""Testing: what goes into a test suite of one's own.

    from fuzz.testing import isolation_test
    from mymodule import factory

    test_no_answer_depends_on_a_neighbour = isolation_test(factory, schedules=200)

Imports no pytest unless a test is made.
"""

from __future__ import annotations

import msgspec

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from fuzz.report import format_finding
from fuzz.run import set_threads
from fuzz.worker import stage_for
from oracle.finding import Verdict
from targets.protocol import CheckName, Schedule, format_schedule
from targets.protocol.schedule import check_references
from targets.registry import TargetSpec, build


def assert_nothing_wrong(schedule: str, target: str = "slots", model: str = "tiny", faults: tuple[str, ...] = ()) -> None:
    """Replays one schedule, and fails with what every check finds wrong.

    Args:
        schedule: As JSON, as it stands in a repro.
        target: A target's name, or package.module:factory.

    Raises:
        AssertionError: with the findings, or with why nothing can be said.
    """
    set_threads()
    asked = msgspec.json.decode(schedule, type=Schedule)
    check_references(asked)
    spec = TargetSpec(target, model, faults)
    factory = build(spec)
    judge = Judge(factory, stage_for(spec, factory))
    try:
        judgement = run_trio(judge.judge, asked, tuple(CheckName), True)
    finally:
        judge.stage.close()
    said = [format_finding(finding) for finding in judgement.findings]
    said += [*judgement.report.unknown, *judgement.report.unstable, *judgement.crashed_checks]
    if judgement.verdict is not Verdict.PASS:
        raise AssertionError("\n".join([*said, "", format_schedule(asked)]))
