"""Testing: what goes into a test suite of one's own.

    from fuzz.testing import isolation_test
    from mymodule import factory

    test_no_answer_depends_on_a_neighbour = isolation_test(factory, schedules=200)

It is several tests, a shard each, so that `pytest -n auto` shares them out. They draw the same schedules each time, unless
`--slotfuzz-profile nightly` (`fuzz.pytest_plugin`), or SLOTFUZZ_PROFILE in the environment, says otherwise.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from fuzz import repro as repros
from fuzz.conductor import run_trio
from fuzz.followup import Failure
from fuzz.judge import Judge
from fuzz.pytest_plugin import PROFILE, PROFILES, SEED
from fuzz.report import format_finding, format_repro
from fuzz.run import set_threads
from fuzz.search import Limits, Search
from fuzz.stage import InProcess, Stage
from fuzz.worker import stage_for
from oracle.finding import Verdict
from targets.models import REACTIVITY_MIN, reactivity
from targets.protocol import BadInput, CheckName, Factory, Schedule, Setting, format_schedule
from targets.protocol.schedule import check_references
from targets.registry import TargetSpec, build

SHARDS = 4


def isolation_test(
    factory: Factory | Callable[[], Factory] | str,
    *,
    schedules: int = 200,
    shards: int = SHARDS,
    settings: Mapping[str, Setting] | None = None,
    out: Path | str = "slotfuzz-out",
) -> Callable[[int], None]:
    """A test of one's own target: no request's answer depends on who else was in the machine.

    Args:
        factory: A factory, or what returns one; both are played in the process of the test. A "package.module:factory" is
            played in a process of its own, and what fails is stored as a repro.
        schedules: In all shards together.
        settings: Knobs that are fixed.
        out: Where repros go.

    Raises:
        AssertionError: the test, with the first failure, shrunk; or where nothing can be said.
    """
    import pytest

    @pytest.mark.parametrize("shard", range(shards))
    def test(shard: int) -> None:
        set_threads()
        seed = seed_of_run()
        share = schedules // shards + (shard < schedules % shards)
        search_shard(factory, dict(settings or {}), seed + shard, share, Path(out))

    test.__doc__ = "No request's answer depends on who else was in the machine."
    made: Callable[[int], None] = test
    return made


def seed_of_run() -> int:
    """The seed from the environment; else 0, or a fresh one at night.

    Raises:
        BadInput: for a profile or a seed that is none.
    """
    profile, seed = os.environ.get(PROFILE, "ci"), os.environ.get(SEED)
    if profile not in PROFILES:
        raise BadInput(PROFILE, "one of " + ", ".join(PROFILES), profile)
    if seed is None:
        return 0 if profile == "ci" else secrets.randbelow(2**32)
    if not seed.isdecimal():
        raise BadInput(SEED, "a whole number", seed)
    return int(seed)


def search_shard(
    factory: Factory | Callable[[], Factory] | str, settings: dict[str, Setting], seed: int, schedules: int, out: Path
) -> None:
    """Searches until the first failure or the last schedule.

    Raises:
        AssertionError: as `isolation_test` says.
    """
    spec = TargetSpec(factory) if isinstance(factory, str) else None
    made = build(spec) if spec is not None else factory if isinstance(factory, Factory) else _called(factory)
    stage: Stage = InProcess(made) if spec is None else stage_for(spec, made)
    search = Search(made, seed, Limits(schedules), settings, stage=stage)
    search.enough = lambda _: True
    try:
        reference = search.judge.reference(settings)
        changed, tried = reactivity(reference.network, made.vocabulary, 12, 8)
        search.tally.mute = changed < REACTIVITY_MIN * tried
        tally = run_trio(search.run)
    finally:
        stage.close()
    again = f"seed {seed}; {SEED}={seed_of_run()} gives the same schedules again"
    if tally.failures:
        raise AssertionError(f"{_told(tally.failures[0], spec, made, reference.bound, seed, out)}\n{again}")
    if tally.verdict is not Verdict.PASS:
        said = [*tally.unknown, *tally.unstable, *tally.crashed_checks]
        said += [f"{changed} of {tried} one-token changes of a prompt change the answer"] if tally.mute else []
        raise AssertionError("\n".join(["undecided, which is no pass:", *said[:10], again]))


def _called(factory: object) -> Factory:
    made = factory() if callable(factory) else factory
    if not isinstance(made, Factory):
        raise BadInput("factory", "a targets.protocol.Factory, or what returns one", type(made).__name__)
    return made


def _told(failure: Failure, spec: TargetSpec | None, factory: Factory, bound: float, seed: int, out: Path) -> str:
    """A failure in words; stored, where its target can be named."""
    if spec is None:
        return "\n".join([format_finding(failure.finding), "", format_schedule(failure.schedule)])
    repro = repros.make(failure, spec, factory, bound, seed)
    return format_repro(repro, repros.save(repro, out / "repros"))


def assert_nothing_wrong(schedule: str, target: str = "slots", model: str = "tiny", faults: tuple[str, ...] = ()) -> None:
    """Replays one schedule, and fails with what every check finds wrong.

    Args:
        schedule: As JSON, as it stands in a repro.
        target: A target's name, or package.module:factory.

    Raises:
        AssertionError: with the findings, or with why nothing can be said.
    """
    set_threads()
    asked = msgspec.json.decode(schedule, type=Schedule)
    check_references(asked)
    spec = TargetSpec(target, model, faults)
    factory = build(spec)
    judge = Judge(factory, stage_for(spec, factory))
    try:
        judgement = run_trio(judge.judge, asked, tuple(CheckName), True)
    finally:
        judge.stage.close()
    said = [format_finding(finding) for finding in judgement.findings]
    said += [*judgement.report.unknown, *judgement.report.unstable, *judgement.crashed_checks]
    if judgement.verdict is not Verdict.PASS:
        raise AssertionError("\n".join([*said, "", format_schedule(asked)]))
