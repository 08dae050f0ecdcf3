"""Search: faults are found and named once each; what is unstable or undecided gets no verdict."""

from __future__ import annotations

import pytest

from fuzz.conductor import run_trio
from fuzz.followup import Failure
from fuzz.judge import Judge
from fuzz.search import Limits, Search, Tally
from fuzz.stage import InProcess
from oracle.finding import Verdict
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import CheckName, Factory, Kind, Schedule, Setting, submissions
from tests.fuzz.scripted import Crowded, Honest, Scripted, Unstable


def searched(factory: Factory, schedules: int = 40, seed: int = 1, **settings: Setting) -> Search:
    search = Search(factory, seed, Limits(schedules=schedules), settings)
    run_trio(search.run)
    return search


@pytest.mark.slow
def test_an_honest_target_passes_and_everything_is_counted() -> None:
    tally = searched(Scripted(Honest)).tally
    assert tally.verdict is Verdict.PASS
    assert tally.schedules == 40
    assert tally.tokens_checked > 400
    assert tally.seconds > 0
    assert tally.report.pairs > 20
    assert tally.mechanisms["wait"] > 0


def test_a_fault_is_found_shrunk_and_named_once() -> None:
    tally = searched(Scripted(Crowded)).tally
    assert tally.verdict is Verdict.FAIL
    assert tally.failing > 3
    (failure,) = tally.failures
    assert (failure.finding.kind, failure.finding.check) == (Kind.CRASHED, CheckName.SURVIVAL)
    assert failure.signature.startswith("CRASHED survival: ")
    assert [len(request.prompt) for request in submissions(failure.schedule)] == [1, 1, 1]
    assert len(failure.schedule.ops) == 3
    assert failure.minimal
    assert failure.found_after <= 10


@pytest.mark.slow
def test_a_planted_leak_is_found_and_its_repro_fails_again(tiny: Model) -> None:
    factory = DecoderFactory(tiny, FAULTS["late-token"].plant())
    failures = searched(factory, schedules=15, context_tokens_max=64).tally.failures
    assert failures
    assert len({failure.signature for failure in failures}) == len(failures)
    assert {failure.finding.kind for failure in failures} <= {Kind.LEAK, Kind.ECHO}
    leaks = [failure for failure in failures if failure.finding.kind is Kind.LEAK]
    assert leaks
    for failure in leaks:
        assert failure.finding.isolated
        assert run_trio(Judge(factory).same, failure.schedule, Kind.LEAK, CheckName.SWAP) is not None


@pytest.mark.slow
def test_what_several_checks_say_of_one_minimal_schedule_is_one_failure_with_all_their_evidence(tiny: Model) -> None:
    fault = FAULTS["stale-length"]
    schedule = Schedule(ops=fault.smallest[Kind.LEAK].ops, settings={"sanitize": True})
    search = Search(DecoderFactory(tiny, fault.plant()), 0, Limits(), {"sanitize": True})
    run_trio(search.one, schedule)
    (failure,) = search.tally.failures
    assert (failure.schedule, failure.finding.check) == (schedule, CheckName.PROVENANCE)
    assert {sentence.split(":")[0] for sentence in failure.finding.evidence} >= {
        "provenance",
        "reference",
        "swap",
        "residue",
    }
    judge = Judge(search.factory)
    for check in (CheckName.PROVENANCE, CheckName.SWAP, CheckName.RESIDUE):
        assert run_trio(judge.same, schedule, Kind.LEAK, check) is not None


def test_failures_are_reported_as_they_are_found_and_schedules_as_they_are_judged() -> None:
    failures: list[Failure] = []
    counts: list[int] = []

    def count(tally: Tally) -> None:
        counts.append(tally.schedules)

    search = Search(Scripted(Crowded), 1, Limits(schedules=12), on_failure=failures.append, on_schedule=count)
    run_trio(search.run)
    assert failures == search.tally.failures
    assert counts == list(range(1, 13))


def test_an_unstable_target_gets_no_verdict_but_is_said_to_be_unstable() -> None:
    tally = searched(Scripted(Unstable), schedules=5).tally
    assert tally.failures == []
    assert tally.verdict is Verdict.UNKNOWN
    assert tally.unstable
    assert "differ" in tally.unstable[0]


@pytest.mark.slow
def test_the_same_seed_searches_the_same_way() -> None:
    first, second = (searched(Scripted(Crowded), seed=5).tally for _ in range(2))
    assert first.tokens_checked == second.tokens_checked
    assert first.mechanisms == second.mechanisms
    assert [failure.schedule for failure in first.failures] == [failure.schedule for failure in second.failures]


def test_a_search_ends_when_its_seconds_are_over() -> None:
    search = Search(Scripted(Honest), 1, Limits(seconds=0.05))
    tally = run_trio(search.run)
    assert 0 < tally.schedules < 1000
    assert tally.seconds >= 0.05


def test_a_search_ends_at_whichever_limit_comes_first() -> None:
    assert run_trio(Search(Scripted(Honest), 1, Limits(schedules=3, seconds=1e6)).run).schedules == 3
    assert run_trio(Search(Scripted(Honest), 1, Limits(schedules=1000, seconds=1e-9)).run).schedules == 1


def test_the_user_s_settings_win_over_drawn_ones() -> None:
    search = Search(Scripted(Honest), 1, Limits(schedules=1), settings={"size": 7})
    drawn = search.generate()
    assert {next(drawn).settings["size"] for _ in range(60)} == {7}


@pytest.mark.parametrize("doubt", ["unknown", "unstable", "crashed_checks"])
def test_whatever_could_not_be_judged_makes_the_verdict_unknown(doubt: str) -> None:
    assert Tally().verdict is Verdict.PASS
    assert Tally(**{doubt: ["?"]}).verdict is Verdict.UNKNOWN  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_network_that_remembers_is_found_and_hides_no_other_bug(tiny: Model) -> None:
    parts = FAULTS["kept-between-runs"].plant(FAULTS["token-lost-on-finish"].plant())
    factory = DecoderFactory(tiny, parts)
    stage = InProcess(factory, lambda: DecoderFactory(tiny, parts))
    search = Search(factory, 1, Limits(schedules=6), {"context_tokens_max": 64}, stage=stage)
    tally = run_trio(search.run)
    found = {(failure.finding.kind, failure.finding.check) for failure in tally.failures}
    assert found == {(Kind.LEAK, CheckName.REPEAT), (Kind.BOOKKEEPING, CheckName.BOOKKEEPING)}
    assert tally.unstable == []
