"""Verdicts: the worst wins, and a check that crashes is unknown, never a pass."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.case import Case
from oracle.checks import CHECKS
from oracle.finding import Finding, Report, Verdict
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import CheckName, Kind, Schedule, Trace
from tests.oracle.handmade import asked

FOUND = Finding(kind=Kind.LEAK, check=CheckName.SWAP, what="a leak")


def test_a_finding_is_worse_than_a_doubt_and_a_doubt_worse_than_a_pass() -> None:
    assert Verdict.PASS < Verdict.UNKNOWN < Verdict.FAIL
    assert Report().verdict is Verdict.PASS
    assert Report(unknown=["?"]).verdict is Verdict.UNKNOWN
    assert Report(unknown=["?"], findings=[FOUND]).verdict is Verdict.FAIL


def test_reports_add_up() -> None:
    whole = Report()
    for _ in range(2):
        whole.add(
            Report(
                findings=[FOUND],
                suspects=1,
                refuted=2,
                unknown=["?"],
                pairs=3,
                pairs_undecided=4,
                cells=5,
                poisoned=6,
                poisoned_undecided=7,
            )
        )
    assert whole == Report(
        findings=[FOUND] * 2,
        suspects=2,
        refuted=4,
        unknown=["?"] * 2,
        pairs=6,
        pairs_undecided=8,
        cells=10,
        poisoned=12,
        poisoned_undecided=14,
    )


def crashing(case: Case) -> Generator[Schedule, Trace, Report]:
    """A check that fails half way."""
    yield case.schedule
    raise RuntimeError("this check is broken")


@pytest.mark.parametrize("name", list(CHECKS))
def test_a_check_that_raises_makes_the_verdict_unknown(
    slots: DecoderFactory, monkeypatch: pytest.MonkeyPatch, name: CheckName
) -> None:
    monkeypatch.setitem(CHECKS, name, crashing)
    judgement = run_trio(Judge(slots).judge, asked((1, 2)), [name])
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.crashed_checks == (f"{name}: RuntimeError: this check is broken",)


def test_the_checks_beside_a_crashed_one_are_still_asked_and_the_worst_wins(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKS, CheckName.SURVIVAL, crashing)
    fault = FAULTS["token-lost-on-finish"]
    judgement = run_trio(Judge(DecoderFactory(tiny, fault.plant())).judge, fault.smallest[Kind.BOOKKEEPING])
    assert len(judgement.crashed_checks) == 1
    assert [finding.kind for finding in judgement.findings] == [Kind.BOOKKEEPING]
    assert judgement.verdict is Verdict.FAIL


def test_an_honest_schedule_passes(slots: DecoderFactory) -> None:
    judgement = run_trio(Judge(slots).judge, asked((1, 2), (3,)))
    assert (judgement.verdict, judgement.crashed_checks, judgement.findings) == (Verdict.PASS, (), [])
