"""Coverage: what a correct target does is feasible, what is feasible is hardly more, and the estimates are known ones."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from fuzz.bench_coverage import format_measured, measured
from fuzz.conductor import play, run_trio
from fuzz.coverage import Coverage, cycles_of, new_a_schedule, within_reach
from fuzz.feasible import SIZES, enumerated, feasible
from fuzz.report import format_grams
from fuzz.search import Limits, Search, drawn
from fuzz.strategies import Space
from targets.decoder import DecoderFactory
from targets.models import Model, find_model
from targets.protocol import Crashed, LifeCycle, Schedule, Setting, Stalled
from tests.fuzz.scripted import Honest, Scripted
from tests.fuzz.storms import guessing, storm

FULL = LifeCycle(slots=8, chunks=True, preempts=True, pipelined=True)


def played(factory: DecoderFactory, schedules: list[Schedule], **settings: Setting) -> Coverage:
    """The coverage of these schedules, with these settings fixed."""
    coverage = Coverage(cycles_of(factory, settings))

    async def all_of_them() -> None:
        for schedule in schedules:
            asked = msgspec.structs.replace(schedule, settings={**schedule.settings, **settings})
            trace = await play(factory, asked, audits=False)
            assert not any(isinstance(event, Crashed | Stalled) for event in trace)
            coverage.count(asked, trace)

    run_trio(all_of_them)
    return coverage


def unforeseen(coverage: Coverage) -> dict[str, int]:
    return {gram: count for size in SIZES for gram, count in coverage.figures(size).unforeseen.items()}


# What is feasible

TARGETS: dict[str, tuple[str, str, dict[str, Setting]]] = {
    "slots": ("slots", "tiny", {}),
    "slots at once": ("slots", "tiny", {"pipelined": False}),
    "slots without chunks": ("slots", "tiny", {"step_tokens_max": 0}),
    "slots with rings": ("slots", "tiny-gemma3", {"step_tokens_max": 0, "window": "ring", "ring_append_max": 1}),
    "pages": ("pages", "tiny", {}),
    "pages, recomputed at once": ("pages", "tiny", {"pipelined": False, "preempt": "recompute"}),
    "pages, moved a step late": ("pages", "tiny", {"pipelined": True, "preempt": "move"}),
    "pages, given back together": ("pages", "tiny", {"pipelined": True, "references": "grouped"}),
    "pages of states": ("pages", "tiny-bamba", {"step_tokens_max": 0}),
    "one slot": ("pages", "tiny", {"slots": 1}),
    "two slots": ("pages", "tiny", {"slots": 2}),
    "private": ("private", "tiny", {}),
    "static": ("static", "tiny", {}),
    "static, at once": ("static", "tiny", {"gather_steps": 0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_a_correct_target_does_in_a_storm_is_unforeseen(name: str) -> None:
    target, model, settings = TARGETS[name]
    factory = guessing(find_model(model), target)
    assert unforeseen(played(factory, [storm(f"{name} {count}", factory) for count in range(250)], **settings)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["slots", "pages", "private"])
def test_nothing_that_a_run_draws_is_unforeseen(tiny: Model, target: str) -> None:
    factory = guessing(tiny, target)
    assert unforeseen(played(factory, list(itertools.islice(drawn(Space.of(factory), 0), 120)))) == {}


@pytest.mark.slow
def test_nobody_is_admitted_beside_answers_where_requests_come_in_together() -> None:
    beside = {"first a, admitted b", "admitted a, tokens -"}
    one_by_one, together = (feasible({LifeCycle(slots=4, together=together)}, 2) for together in (False, True))
    assert one_by_one & beside == beside
    assert together & beside == set()
    assert together < one_by_one


@pytest.mark.slow
def test_hardly_anything_is_feasible_that_no_storm_reaches(tiny: Model) -> None:
    factory = guessing(tiny, "slots")
    coverage = played(factory, [storm(count, factory) for count in range(1000)])
    two, three = (coverage.figures(size) for size in SIZES)
    assert two.feasible is not None
    assert three.feasible is not None
    assert two.seen >= 0.95 * two.feasible
    assert three.seen >= 0.8 * three.feasible


@pytest.mark.slow
@pytest.mark.parametrize(
    "impossible",
    [
        "admitted a, submit a",
        "freed a, first a",
        "refused a, admitted a",
        "submit a, resumed a",
        "first a, chunk a",
        "first a, first a",
        "tokens -, tokens -",
        "length a, cancelled a",
        "length a, freed a, freed a",
        "first a, stop a, stop b",  # told in the order of the tokens
        "cancelled a, first b, submit c, freed a",
        "context a, tokens -, freed a",  # no forward is launched for a request that is full
        "stop a, preempted b, freed a",  # nobody is preempted before what is in flight has landed
    ],
)
def test_what_cannot_be_is_not_feasible(impossible: str) -> None:
    assert not any(impossible in gram for size in SIZES for gram in enumerated(FULL)[size])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gram", "needs"),
    [
        ("preempted a, resumed b", {"preempts": False}),
        ("chunk a, first a", {"chunks": False}),
        ("cancelled a, tokens -, freed a", {"pipelined": False}),
        ("stop a, stop b", {"pipelined": False}),
        ("admitted a, admitted b", {"slots": 1}),
        ("first a, first b, first c", {"slots": 2}),
    ],
)
def test_what_a_target_lacks_is_not_feasible_in_it(gram: str, needs: dict[str, object]) -> None:
    size = gram.count(",") + 1
    assert gram in enumerated(FULL)[size]
    assert gram not in enumerated(msgspec.structs.replace(FULL, **needs))[size]


@pytest.mark.slow
def test_what_may_be_seen_with_results_at_once_may_be_seen_with_late_ones_as_well() -> None:
    for slots, more in itertools.product((1, 3), (False, True)):
        late = LifeCycle(slots=slots, chunks=more, preempts=more, pipelined=True)
        at_once = msgspec.structs.replace(late, pipelined=False)
        for size in SIZES:
            assert enumerated(at_once)[size] < enumerated(late)[size]
            assert feasible([at_once, late], size) == enumerated(late)[size]


@pytest.mark.slow
def test_more_slots_than_a_gram_has_requests_make_no_difference() -> None:
    assert enumerated(msgspec.structs.replace(FULL, slots=3)) == enumerated(FULL)


def test_settings_that_a_run_fixes_narrow_what_is_feasible(tiny: Model) -> None:
    slots, pages, private = (DecoderFactory(tiny, name=name) for name in ("slots", "pages", "private"))
    at_once = LifeCycle(slots=8, chunks=True)
    late = msgspec.structs.replace(at_once, pipelined=True)
    assert cycles_of(slots, {}) == cycles_of(private, {}) == (at_once, late)
    assert cycles_of(pages, {"pipelined": True}) == (FULL,)
    assert cycles_of(pages, {"pipelined": True, "slots": 1}) == (msgspec.structs.replace(late, slots=1),)
    assert cycles_of(slots, {"pipelined": False, "step_tokens_max": 0}) == (LifeCycle(slots=8),)
    assert cycles_of(Scripted(Honest), {}) is None


# What is counted


def test_a_gram_counts_once_for_each_schedule_that_shows_it(tiny: Model) -> None:
    factory = guessing(tiny, "slots")
    schedule = storm(1, factory)
    coverage = played(factory, [schedule, schedule])
    assert set(coverage.seen[2].values()) == {2}
    assert coverage.figures(2).new_a_schedule == 0


SEEN = Counter({"once": 1, "one": 1, "ones": 1, "twice": 2, "often": 9})


def test_the_next_schedule_brings_as_many_new_ones_as_came_once_by_the_schedule() -> None:
    assert new_a_schedule(SEEN, 10) == pytest.approx(3 / 10)
    assert new_a_schedule(Counter(), 0) == 0


def test_what_came_once_and_twice_tells_how_many_have_not_come_yet() -> None:
    assert within_reach(SEEN, 10) == pytest.approx(9 / 10 * 3 * 2 / (2 * 2))
    assert within_reach(Counter({"a": 1, "b": 1}), 5) == pytest.approx(4 / 5 * 1)  # none came twice
    assert within_reach(Counter({"often": 9}), 10) == within_reach(Counter(), 0) == 0


@pytest.mark.slow
def test_the_estimates_agree_with_what_a_longer_run_shows(tiny: Model) -> None:
    factory = guessing(tiny, "slots")
    schedules = [storm(count, factory) for count in range(400)]
    before, after = (played(factory, schedules[:count]).figures(3) for count in (200, 400))
    assert after.new_a_schedule < (after.seen - before.seen) / 200 < before.new_a_schedule
    assert after.seen - before.seen < before.within_reach * 1.5


# What is said


@pytest.mark.slow
def test_a_search_counts_and_the_report_says_how_much_of_what_is_feasible_was_seen() -> None:
    tally = Search(Scripted(Honest), 1, Limits()).tally
    assert tally.coverage.cycles is None
    coverage = Coverage((LifeCycle(slots=8),), schedules=10)
    coverage.seen[2].update({"submit a, submit b": 4, "submit a, refused a": 1, "freed a, freed a": 2})
    assert format_grams(2, coverage.figures(2)) == (
        "2 of 81 feasible 2-grams (2%), 0.1 new a schedule, at least 0 more within reach, 1 unforeseen (freed a, freed a)"
    )
    unknown = replace(coverage, cycles=None)
    assert format_grams(2, unknown.figures(2)) == "3 2-grams, 0.1 new a schedule, at least 0 more within reach"


def test_what_was_never_seen_is_named(tiny: Model) -> None:
    coverage = Coverage((LifeCycle(slots=1),), schedules=1)
    figures = coverage.figures(2)
    assert (figures.seen, figures.feasible, figures.unforeseen) == (0, len(figures.never), {})
    assert "submit a, admitted a" in figures.never


@pytest.mark.slow
def test_a_run_counts_every_schedule() -> None:
    search = Search(Scripted(Honest), 1, Limits(schedules=12))
    coverage = run_trio(search.run).coverage
    assert coverage.schedules == 12
    assert coverage.seen[2]["submit a, admitted a"] == 12


@pytest.mark.slow
def test_the_bench_goes_on_from_one_count_to_the_next() -> None:
    few, more = measured(Scripted(Honest), (3, 8), 1, {})
    assert (few.schedules, more.schedules) == (3, 8)
    assert few.grams["3"].seen < more.grams["3"].seen
    assert format_measured(few).splitlines()[0].startswith("     3 schedules: ")
    assert next(measured(Scripted(Honest), (8,), 1, {})) == more
