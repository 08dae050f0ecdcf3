"""Sessions: a request that goes on from another is played, judged and stored as the whole prompt that was handed in."""

from __future__ import annotations

import functools

import pytest

from fuzz.conductor import replay, run_trio
from fuzz.judge import Judge
from fuzz.search import Limits, Search
from oracle.checks import CHECKS
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import (
    Event,
    Finished,
    Kind,
    Op,
    Request,
    Schedule,
    Setting,
    Step,
    Submit,
    Wait,
    digest,
    in_full,
    submissions,
)
from tests.fuzz.scripted import Honest, Scripted


class Remembering(Honest):
    """Remembers what it is asked."""

    def __init__(self, opened: int) -> None:
        super().__init__(opened)
        self.asked: list[Request] = []

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Starts it."""
        self.asked.append(request)
        return super().submit(submission, request)


def ask(*prompt: int, new: int, **extras: int) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, **extras))  # type: ignore[arg-type]


def test_a_target_is_handed_the_whole_prompt_and_the_schedule_in_full_says_the_same() -> None:
    factory = Scripted(Remembering)
    schedule = Schedule(ops=(ask(5, new=9), Step(2), ask(20, new=1, continues=0), Step(1), ask(9, new=1, continues=1)))
    trace = replay(factory, schedule)
    (target,) = factory.opened
    assert isinstance(target, Remembering)
    assert [request.prompt for request in target.asked] == [(5,), (5, 6, 7, 20), (5, 6, 7, 20, 21, 9)]
    assert tuple(target.asked) == submissions(in_full(schedule, trace))
    assert digest(replay(factory, in_full(schedule, trace))) == digest(trace)


CHAT: tuple[Op, ...] = (
    ask(*range(1, 18), new=6),
    ask(40, 41, new=12),
    Wait(0, 6),
    ask(50, new=5, continues=0),
    Wait(2, 3),
    ask(51, 52, new=4, continues=2),
    ask(53, new=4, continues=0),
    ask(54, new=2, continues=1),
)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"page_size": 1}, {"page_size": 4, "step_tokens_max": 8}], ids=str)
def test_nobody_in_a_session_is_called_a_victim_of_what_it_goes_on_from(tiny: Model, settings: dict[str, Setting]) -> None:
    judge = Judge(DecoderFactory(tiny, name="pages"))
    schedule = Schedule(ops=CHAT, settings=settings)
    judgement = run_trio(functools.partial(judge.judge, thorough=True), schedule, tuple(CHECKS))
    assert (judgement.findings, judgement.report.unknown, judgement.crashed_checks) == ([], [], ())
    assert judgement.report.pairs_undecided == 0
    assert judgement.report.pairs == 6
    assert sum(judgement.case.cached.values()) > 60
    assert sum(isinstance(event, Finished) for event in judgement.trace) == 6


@pytest.mark.slow
def test_what_a_session_shows_is_shrunk_and_kept_as_what_was_asked_in_full(tiny: Model) -> None:
    fault = FAULTS["published-by-tokens"]
    search = Search(DecoderFactory(tiny, fault.plant(), "pages"), 0, Limits())
    run_trio(search.one, Schedule(ops=CHAT))
    (failure,) = [failure for failure in search.tally.failures if failure.finding.kind is Kind.STALE_HIT]
    assert failure.schedule == fault.smallest[Kind.STALE_HIT]
    assert failure.minimal
