from __future__ import annotations

import pytest

from fuzz.conductor import run_trio
from fuzz.forwards import Fill, tokens_fed
from fuzz.judge import Judge
from fuzz.search import drawn
from fuzz.strategies import Space
from oracle.checks import CHECKS
from targets.protocol import Admitted, Drafted, Emitted, Preempted, Request, Schedule, Setting, Step, Stepped, Submit
from targets.registry import TargetSpec, build


def filled(schedule: Schedule, target: str = "slots", **settings: Setting) -> Fill:
    judge = Judge(build(TargetSpec(target)))
    run_trio(judge.judge, Schedule(ops=schedule.ops, settings=settings), list(CHECKS)[:1])
    return judge.forwards().fill


def asking(*lengths: int, new: int) -> Schedule:
    requests = [Request(prompt=tuple(range(1, length + 1)), max_new_tokens=new) for length in lengths]
    return Schedule(ops=(*map(Submit, requests), Step(count=new)))


def test_a_row_that_is_filled_up_to_the_longest_is_padding() -> None:
    fill = filled(asking(4, 2, new=1), slots=2)
    assert fill == Fill(rows=2, slots=2, places=8, fed=6)
    assert (fill.padding_share, fill.batch_fill) == (0.25, 1.0)


def test_a_row_that_only_fills_the_batch_up_is_padding() -> None:
    fill = filled(asking(2, 2, 2, new=1), slots=4, pad_batch=True)
    assert fill == Fill(rows=4, slots=4, places=8, fed=6)


def test_decodes_are_never_padding_and_a_batch_of_one_leaves_slots_free() -> None:
    fill = filled(asking(3, new=4), slots=4)
    assert (fill.padding_share, fill.batch_fill) == (0.0, 0.25)


def test_tokens_are_fed_again_after_a_preemption_and_not_where_they_were_cached() -> None:
    requests = [Request(prompt=(1, 2, 3, 4), max_new_tokens=3)]
    trace = (Admitted(0, 0, 1), Emitted(0, 5), Emitted(0, 6), Preempted(0, 0), Admitted(0, 0, 2), Emitted(0, 7))
    assert tokens_fed(trace, requests) == (3 + 1) + (6 - 2)


def test_guesses_are_fed_whether_or_not_they_come_true() -> None:
    requests = [Request(prompt=(1, 2), max_new_tokens=8)]
    trace = (Admitted(0, 0), Stepped(0), Emitted(0, 5), Stepped(1), Drafted(0, 3), Emitted(0, 6), Emitted(0, 7))
    assert tokens_fed((*trace, Stepped(2), Emitted(0, 8)), requests) == 2 + (1 + 3) + 1


def test_what_was_never_seen_has_no_share() -> None:
    assert (Fill().padding_share, Fill().batch_fill) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["slots", "private", "pages"])
def test_where_each_prompt_has_a_forward_of_its_own_every_place_is_accounted_for(target: str) -> None:
    judge = Judge(build(TargetSpec(target)))
    settings: dict[str, Setting] = {"prefill": "alone", "pipelined": False, "pad_batch": False}
    for _, schedule in zip(range(30), drawn(Space.of(judge.factory), 5), strict=False):
        whole = Schedule(ops=schedule.ops, settings={**schedule.settings, **settings})
        run_trio(judge.judge, whole, list(CHECKS)[:1])
    fill = judge.forwards().fill
    assert fill.places > 1000
    assert fill.fed == fill.places
