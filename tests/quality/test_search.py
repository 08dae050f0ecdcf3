from __future__ import annotations

import itertools

import pytest

from fuzz.conductor import run_trio
from fuzz.fault_bench.attempts import stage_of
from fuzz.followup import Failure
from fuzz.search import Limits, Search
from oracle.finding import Verdict
from targets import attention
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import CheckName, Factory, Kind, Setting
from tests.quality.planting import SEARCHED, plant, size, smallest

SCHEDULES, TWIN_SCHEDULES = 120, 30
EVALUATIONS_MAX = 200
SHORT_OF = {
    "hash-not-verified": "its shrink takes 278 evaluations from the storm that shows it first",
    "source-hash-small": "the site that shows it first needs words behind the picture: 8 tokens, where 4 do",
}
"""Where the search falls short of what is wanted, and why."""
LONG = ("swap-through-views", "picture-restarts-in-chunk")
WANTED = [
    pytest.param(
        name,
        marks=[
            *([pytest.mark.xfail(reason=SHORT_OF[name])] if name in SHORT_OF else []),
            *([pytest.mark.long] if name in LONG else []),
        ],
    )
    for name in SEARCHED
]


def first_failures(factory: Factory, settings: dict[str, Setting] | None = None) -> list[Failure]:
    """What the first failing schedule of a search with seed 0 is shrunk to."""
    stage = stage_of(factory) if isinstance(factory, DecoderFactory) else None
    search = Search(factory, 0, Limits(schedules=SCHEDULES), settings, stage=stage)

    async def go() -> list[Failure]:
        for schedule in itertools.islice(search.generate(), SCHEDULES):
            await search.one(schedule)
            if search.tally.failures:
                break
        assert search.tally.unstable == search.tally.crashed_checks == search.tally.unknown == []
        return search.tally.failures

    return run_trio(go)


def assert_passes(factory: Factory, settings: dict[str, Setting] | None = None) -> None:
    """Raises where a search with seed 0 finds anything or leaves anything undecided."""
    search = Search(factory, 0, Limits(schedules=TWIN_SCHEDULES), settings)
    tally = run_trio(search.run)
    assert tally.verdict is Verdict.PASS, (tally.failures, tally.unknown, tally.unstable, tally.crashed_checks)
    assert (tally.schedules, tally.failing) == (TWIN_SCHEDULES, 0)
    assert tally.report.pairs > TWIN_SCHEDULES // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", WANTED)
def test_a_fault_is_found_and_shrinks_to_the_smallest_schedule_known(tiny: Model, name: str) -> None:
    fault = FAULTS[name]
    factory, probe = plant(tiny, name)
    failures = first_failures(factory, dict(fault.settings))
    assert probe.changed
    assert failures, f"not found in {SCHEDULES} schedules"
    for failure in failures:
        assert failure.finding.kind in fault.kinds
        assert failure.finding.check in fault.checks
        requests, tokens = size(failure.schedule)
        requests_known, tokens_known = size(smallest(name, failure.finding.kind))
        assert requests <= requests_known + 1
        assert tokens <= tokens_known + 2
        assert failure.minimal
        assert failure.evaluations <= EVALUATIONS_MAX


@pytest.mark.long  # together they take two minutes, and that twins pass is asked of their smallest schedules every time
@pytest.mark.parametrize("name", [name for name in SEARCHED if name != "recompute-off-by-one"])  # not reached so soon
def test_the_honest_twin_of_a_fault_passes(tiny: Model, name: str) -> None:
    factory, probe = plant(tiny, name, honest=True)
    assert_passes(factory, dict(FAULTS[name].settings))
    assert probe.reached
    assert not probe.changed


@pytest.mark.slow
def test_an_attention_that_keeps_its_cache_in_itself_leaks() -> None:
    (failure, *_) = first_failures(attention.shared())
    assert (failure.finding.kind, failure.finding.check) == (Kind.LEAK, CheckName.SWAP)
    assert size(failure.schedule) == (2, 4)
    assert failure.minimal


@pytest.mark.slow
def test_an_attention_whose_cache_is_passed_in_and_out_passes() -> None:
    assert_passes(attention.honest())
