"""The sum of a run: every response is judged, lost or unjudged, and the exit code says the worst."""

from __future__ import annotations

import pytest

from oracle.finding import Verdict
from stress.judging.opinion import Complaint, Opinion, Standing
from stress.judging.verdicts import SHOWN_MAX, Verdicts, format_verdicts, summed
from targets.protocol import Kind


def opinion(number: int, standing: Standing, *complaints: Complaint) -> Opinion:
    return Opinion(
        source="a", number=number, outcome="answered", standing=standing, tokens=2, judged=2, complaints=complaints
    )


def of(*standings: Standing, in_flight: int = 0, unreadable: int = 0) -> Verdicts:
    every = [opinion(number, standing) for number, standing in enumerate(standings)]
    return summed(every, in_flight=in_flight, by="tiny", seconds=1.0, unreadable=[("a", "why")] * unreadable)


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        (of(), Verdict.UNKNOWN),
        (of(Standing.UNREACHED), Verdict.UNKNOWN),
        (of(Standing.RIGHT, Standing.UNREACHED), Verdict.PASS),
        (of(Standing.RIGHT), Verdict.PASS),
        (of(Standing.RIGHT, Standing.UNJUDGED), Verdict.UNKNOWN),
        (of(Standing.RIGHT, Standing.SUSPECT), Verdict.UNKNOWN),
        (of(Standing.RIGHT, unreadable=1), Verdict.UNKNOWN),
        (of(Standing.RIGHT, Standing.LOST), Verdict.FAIL),
        (of(Standing.RIGHT, in_flight=1), Verdict.FAIL),
        (of(Standing.UNJUDGED, Standing.WRONG), Verdict.FAIL),
    ],
)
def test_the_worst_wins(verdicts: Verdicts, worst: Verdict) -> None:
    assert verdicts.worst is worst


def test_every_response_is_counted_once() -> None:
    every = of(*Standing, Standing.RIGHT, in_flight=3, unreadable=1)
    assert every.responses == every.judged + every.lost + every.unjudged + every.unreached == 11
    assert (every.judged, every.wrong, every.lost, every.unjudged, every.unreached) == (3, 1, 4, 3, 1)
    assert every.in_flight == 3
    assert (every.tokens, every.tokens_judged) == (14, 14)


def test_kinds_are_counted_by_the_first_complaint_that_has_one() -> None:
    verdicts = summed(
        [
            opinion(0, Standing.WRONG, Complaint(what="a token"), Complaint(what="a count", kind=Kind.BOOKKEEPING)),
            opinion(1, Standing.WRONG, Complaint(what="a leak", kind=Kind.LEAK)),
            opinion(2, Standing.WRONG, Complaint(what="a token")),
            opinion(3, Standing.RIGHT),
        ],
        in_flight=0,
        by="tiny",
        seconds=1.0,
    )
    assert verdicts.kinds == {"BOOKKEEPING": 1, "LEAK": 1, "undetermined": 1}
    assert "wrong: a #0: a token" in format_verdicts(verdicts)


def test_the_worst_responses_are_written_out_up_to_a_limit() -> None:
    verdicts = of(*[Standing.LOST] * 200, Standing.WRONG)
    assert len(verdicts.not_right) == SHOWN_MAX
    assert verdicts.not_right[0].standing is Standing.WRONG
