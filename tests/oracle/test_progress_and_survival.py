"""Progress and survival: every request ends, nothing crashes, every logit is finite."""

from __future__ import annotations

import pytest
import torch

from oracle.checks.progress import progress
from oracle.checks.survival import survival
from targets.protocol import Asked, Control, Crashed, Emitted, Finished, Kind, Reason, Stalled, Stepped
from tests.oracle.handmade import asked, case_of, report_of, sentences

SCHEDULE = asked((1,), (2,))
FINE = (Asked(0), Asked(1), Stepped(0), Emitted(0, 5, torch.zeros(4)), Finished(0, Reason.LENGTH, (5,)))


def test_a_trace_in_which_all_goes_well_has_no_finding() -> None:
    assert sentences(progress, SCHEDULE, *FINE) == []
    assert sentences(survival, SCHEDULE, *FINE) == []


def test_requests_that_never_advance_are_stalled() -> None:
    (finding,) = report_of(progress, case_of(SCHEDULE, (*FINE, Stalled((1,), 4)))).findings
    assert (finding.kind, finding.submission, finding.event) == (Kind.STALLED, 1, len(FINE))
    assert finding.what == "#1 never ended: nothing happened in 4 steps"


def test_a_request_that_gets_tokens_for_ever_is_stalled_too() -> None:
    assert sentences(progress, SCHEDULE, *FINE, Stalled((0, 1), 0)) == [
        "#0 #1 never ended: more tokens came than were asked for"
    ]


def test_a_crash_is_found_with_what_was_done_and_for_whom() -> None:
    crash = Crashed("step", "IndexError: index 9 is out of range", (0, 1))
    (finding,) = report_of(survival, case_of(SCHEDULE, (*FINE, crash))).findings
    assert (finding.kind, finding.submission, finding.event) == (Kind.CRASHED, None, len(FINE))
    assert finding.what == "step raised IndexError: index 9 is out of range"
    assert finding.evidence == ("live requests: #0 #1",)


def test_a_crash_in_one_request_s_own_call_is_that_request_s() -> None:
    (finding,) = report_of(survival, case_of(SCHEDULE, (*FINE, Crashed("submit", "E: e", (1,))))).findings
    assert finding.submission == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_logit_that_is_not_finite_is_found_at_its_first_token(value: float) -> None:
    bad = torch.zeros(4)
    bad[2] = value
    (finding,) = report_of(survival, case_of(SCHEDULE, (*FINE, Emitted(1, 5, torch.zeros(4)), Emitted(1, 5, bad)))).findings
    assert (finding.kind, finding.submission, finding.position) == (Kind.NONFINITE, 1, 1)


def test_infinities_of_both_signs_do_not_cancel() -> None:
    both = torch.tensor([float("inf"), float("-inf"), 0.0, 0.0])
    assert len(sentences(survival, SCHEDULE, *FINE, Emitted(1, 5, both))) == 1


def test_a_logit_that_is_not_finite_is_found_beside_tokens_without_logits() -> None:
    bad = torch.full((4,), float("nan"))
    assert len(sentences(survival, SCHEDULE, *FINE, Emitted(1, 5), Emitted(1, 5, bad), control=Control())) == 1


def test_half_precision_logits_that_are_finite_are_finite_in_sum() -> None:
    large = torch.full((4,), 6e4, dtype=torch.float16)
    assert sentences(survival, asked((1,)), Asked(0), Emitted(0, 5, large), Emitted(0, 5, large)) == []
