"""The disputed public case, retold: prefix pages are recycled under pressure in bfloat16, and somebody's answer departs.

Zeroing recycled pages changes nothing. Is it a leak? Each side of the dispute can be right: here is one case of each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.case import Case
from oracle.dispute import dispute
from oracle.finding import Verdict
from targets.decoder import DECODERS, DecoderFactory
from targets.faults import QUIRKS
from targets.faults.dose import Leaks, leaking
from targets.models import Model
from targets.protocol import Audited, Emitted, Request, Schedule, Step, Submit

VICTIM = 2
PRESSED = {"dtype": "bfloat16", "page_size": 4, "pool_tokens": 160}


def stories(settings: dict[str, str | int]) -> Iterator[Schedule]:
    """Somebody leaves a prefix behind, somebody long comes and takes pages, and a third begins like the first."""
    for seed in range(60):
        chance = random.Random(seed)
        prefix, long, tail = (tuple(chance.choices(range(256), k=count)) for count in (12, 120, 5))
        ops = [
            Submit(Request(prompt=prefix, max_new_tokens=4)),
            Step(3),
            Submit(Request(prompt=long, max_new_tokens=24)),
            Step(2),
            Submit(Request(prompt=(*prefix[:8], *tail), max_new_tokens=24)),
        ]
        yield Schedule(ops=tuple(ops), settings=settings)


def first_disputed(judge: Judge, settings: dict[str, str | int]) -> Case:
    """The first of the stories in which the third one's answer is not the isolated one."""
    for schedule in stories(settings):
        case = judge.case(schedule, run_trio(judge.replay, schedule))
        isolated = case.reference.greedy(case.requests[VICTIM], case.context_tokens_max)
        if case.answers[VICTIM] != isolated:
            return case
    raise AssertionError("no answer departs")


@pytest.mark.slow
def test_an_answer_that_departs_under_pressure_in_bfloat16_is_rounding_with_its_evidence(tiny: Model) -> None:
    # An engine whose sums depend on the batch, as most do: in bfloat16 its tokens flip often enough.
    judge = Judge(DecoderFactory(tiny, QUIRKS["batch-sized-sum"].plant(DECODERS["pages"]), "pages"))
    case = first_disputed(judge, PRESSED)
    (last,) = [event.audit for event in case.trace if isinstance(event, Audited)][-1:]
    assert last.counts["evicted"], "pages were recycled"
    assert case.cached[VICTIM] >= 8, "a prefix was hit"
    zeroed = msgspec.structs.replace(case.schedule, settings={**PRESSED, "reuse": "zero-on-free"})
    again = run_trio(judge.replay, zeroed)
    tokens = [event.token for event in again if isinstance(event, Emitted) and event.submission == VICTIM]
    assert tuple(tokens) == case.answers[VICTIM], "zeroing recycled pages changes nothing"
    told = run_trio(judge.drive, dispute(case, VICTIM))
    assert [line.partition(":")[0] for line in told] == ["tokens", "swap", "residue", "float64", "rounding"]
    assert run_trio(judge.judge, case.schedule).verdict is Verdict.PASS


@pytest.mark.slow
def test_an_answer_into_which_somebody_leaks_is_not_rounding(tiny: Model) -> None:
    judge = Judge(DecoderFactory(tiny, leaking(0.3, Leaks())))
    told = run_trio(judge.drive, dispute(first_disputed(judge, {"dtype": "bfloat16"}), VICTIM))
    assert told[1] == "swap: with everybody else's tokens exchanged, its bits change"
    assert told[-1] == "not rounding: its bits depend on what is not its own"


def test_an_answer_that_is_the_isolated_one_is_not_disputed(slots: DecoderFactory) -> None:
    judge = Judge(slots)
    schedule = next(stories({}))
    case = judge.case(schedule, run_trio(judge.replay, schedule))
    assert run_trio(judge.drive, dispute(case, VICTIM)) == ()
