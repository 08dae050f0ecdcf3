"""Progress and survival: every request ends, nothing crashes, every logit is finite."""

from __future__ import annotations

import msgspec
import pytest
import torch

from oracle.checks.progress import progress
from oracle.checks.survival import survival
from oracle.checks.swap import swap
from targets.protocol import (
    Admitted,
    Asked,
    Control,
    Crashed,
    Emitted,
    Event,
    Finished,
    Freed,
    Kind,
    Reason,
    Refused,
    Schedule,
    Stalled,
    Stepped,
    Trace,
    Wait,
)
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
    assert finding.evidence == (
        "under way: op 1, submit #1 prompt [2] new 2; the last step was 0",
        "live: #1, 1 prompt and 0 new tokens",
    )


def test_a_crash_names_the_line_that_raised_where_it_is_known() -> None:
    crash = Crashed("step", "IndexError: index 9 is out of range", (1,), at="mine.py:41, in step")
    (finding,) = report_of(survival, case_of(SCHEDULE, (*FINE, crash))).findings
    assert finding.evidence[0] == "raised at mine.py:41, in step"


def test_what_is_no_answer_is_not_called_raised() -> None:
    crash = Crashed("answer", "TypeError: a list of events is due, not None", (1,))
    (finding,) = report_of(survival, case_of(SCHEDULE, (*FINE, crash))).findings
    assert finding.what == "a call came back with what is no answer: TypeError: a list of events is due, not None"


def test_a_crash_names_the_op_the_step_and_each_live_request_s_slot_and_length() -> None:
    schedule = msgspec.structs.replace(SCHEDULE, ops=(*SCHEDULE.ops, Wait(1, 2)), settings={"slots": 2})
    told = (Asked(0), Admitted(0, 3), Asked(1), Asked(2), Stepped(0), Emitted(0, 5), Stepped(1), Emitted(0, 6))
    (finding,) = report_of(survival, case_of(schedule, (*told, Crashed("step", "E: e", (0, 1))))).findings
    assert finding.evidence == (
        "under way: op 2, wait #1 for 2 tokens; the last step was 1",
        "live: #0 in slot 3, 1 prompt and 2 new tokens",
        "live: #1, 1 prompt and 0 new tokens",
    )


def test_a_crash_after_the_last_op_or_before_the_first_says_so() -> None:
    ends = (Asked(2), Freed(0, 0), Refused(1, "no"))
    crash = Crashed("close", "E: e", ())
    (late,) = report_of(survival, case_of(SCHEDULE, (*FINE, *ends, crash))).findings
    assert late.evidence == ("under way: the steps after the last op; the last step was 0", "live requests: none")
    (early,) = report_of(survival, case_of(SCHEDULE, (Crashed("open", "E: e", ()),))).findings
    assert early.evidence == ("live requests: none",)


def test_a_crash_that_took_the_process_with_it_is_told_from_what_was_raised() -> None:
    crash = Crashed("step", "was killed by SIGABRT", (1,), fatal=True)
    assert sentences(survival, SCHEDULE, *FINE, crash) == ["step ended the process, which was killed by SIGABRT"]


def test_a_call_that_never_came_back_is_stalled_whoever_waits() -> None:
    assert sentences(progress, SCHEDULE, *FINE, Stalled((1,), 0, "step")) == ["step never came back, and #1 never ended"]
    (finding,) = report_of(progress, case_of(SCHEDULE, (*FINE, Stalled((), 0, "close")))).findings
    assert (finding.what, finding.submission) == ("close never came back", None)


@pytest.mark.parametrize(
    "end", [Crashed("step", "was killed by SIGABRT", (1,), fatal=True), Stalled((1,), 0, "step")], ids=["death", "hang"]
)
def test_nothing_is_exchanged_where_every_replay_would_cost_a_process(end: Event) -> None:
    report = report_of(swap, case_of(SCHEDULE, (*FINE, end)))
    assert (report.pairs, report.pairs_undecided) == (0, 1)


def test_after_a_crash_that_left_the_process_alone_the_swap_is_still_asked() -> None:
    asked_for: list[Schedule] = []

    def play(variant: Schedule) -> Trace:
        asked_for.append(variant)
        return FINE

    report_of(swap, case_of(SCHEDULE, (*FINE, Crashed("step", "E: e", (1,)))), play)
    assert len(asked_for) == 1


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
