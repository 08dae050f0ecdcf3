"""A quirk is no bug: every suspect of it is refuted; and a leak planted in the same target is still found, as a LEAK."""

from __future__ import annotations

import itertools

import pytest
import torch

from fuzz.conductor import replay, run_trio
from fuzz.judge import Judge
from fuzz.search import Limits, Search
from oracle.finding import Verdict
from oracle.sampling import choice
from targets.decoder import DecoderFactory, Parts
from targets.faults import FAULTS, QUIRKS, Probe
from targets.faults.dose import Leaks, leaking
from targets.models import Model
from targets.protocol import CheckName, Emitted, Factory, Kind, Trace, emitted_by_submission, submissions
from targets.registry import TargetSpec, build
from tests.oracle.handmade import asked

QUIRK = QUIRKS["batch-sized-sum"]
NARROW = {"dtype": "bfloat16"}


def logits_of(trace: Trace) -> list[torch.Tensor]:
    return [event.logits for event in trace if isinstance(event, Emitted) and event.logits is not None]


def flips(factory: Factory, count: int) -> tuple[int, int]:
    """Of all answers in the first schedules of a search with seed 0: how many have a token that is not the one alone."""
    search = Search(factory, 0, Limits(), dict(NARROW))
    reference = search.judge.reference(NARROW)
    flipped = answers = 0
    for schedule in itertools.islice(search.generate(), count):
        requests = submissions(schedule)
        for who, events in emitted_by_submission(replay(factory, schedule)).items():
            answer = tuple(event.token for event in events)
            rows = reference.logits(requests[who].prompt, answer)
            flipped += any(choice(requests[who], answer[:place], row) != answer[place] for place, row in enumerate(rows))
            answers += 1
    return flipped, answers


def first_kinds(tiny: Model, parts: Parts) -> tuple[set[tuple[Kind, CheckName]], int]:
    """What the first failing schedule of a search in bfloat16 with seed 0 shows, unshrunk, and which one it is."""
    search = Search(DecoderFactory(tiny, parts), 0, Limits(), dict(NARROW))

    async def go() -> tuple[set[tuple[Kind, CheckName]], int]:
        for count, schedule in enumerate(itertools.islice(search.generate(), 20)):
            judgement = await search.judge.judge(schedule)
            assert not judgement.crashed_checks
            if judgement.findings:
                return {(finding.kind, finding.check) for finding in judgement.findings}, count
        return set(), 20

    return run_trio(go)


def test_a_quirk_is_kept_apart_from_the_faults_and_planted_like_one() -> None:
    assert not QUIRKS.keys() & FAULTS.keys()
    for name, quirk in QUIRKS.items():
        assert quirk.name == name
        assert all((quirk.group, quirk.modelled_on, quirk.doc, quirk.mixins, quirk.models))
    factory = build(TargetSpec(faults=("batch-sized-sum", "stale-length")))
    assert isinstance(factory, DecoderFactory)
    assert issubclass(factory.parts.runner, QUIRK.mixins["runner"])
    assert issubclass(factory.parts.store, FAULTS["stale-length"].mixins["store"])


def test_the_arithmetic_depends_on_the_number_of_rows_and_on_nothing_else(tiny: Model) -> None:
    probe = Probe()
    factory, clean = DecoderFactory(tiny, QUIRK.plant(probe=probe)), DecoderFactory(tiny)
    one, three = asked((1, 2), new=1), asked((1, 2), (3, 4), (5, 6), new=1)
    pairs = [(logits_of(replay(factory, schedule)), logits_of(replay(clean, schedule))) for schedule in (one, three)]
    assert torch.equal(pairs[0][0][0], pairs[0][1][0]), "alone, the sums are whole"
    assert not torch.equal(pairs[1][0][0], pairs[1][1][0])
    assert probe.changed


def test_the_honest_twin_leaves_the_sums_whole(tiny: Model) -> None:
    probe = Probe(honest=True)
    schedule = asked((1, 2), (3, 4), new=2)
    twin = logits_of(replay(DecoderFactory(tiny, QUIRK.plant(probe=probe)), schedule))
    clean = logits_of(replay(DecoderFactory(tiny), schedule))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(twin, clean, strict=True))
    assert probe.reached
    assert not probe.changed


@pytest.mark.slow
def test_it_flips_tokens_in_bfloat16_and_every_suspect_comes_out_as_rounding(tiny: Model) -> None:
    factory = DecoderFactory(tiny, QUIRK.plant())
    flipped, answers = flips(factory, 24)
    assert flipped * 20 >= answers, f"{flipped} of {answers}: too tame to try anything on"
    tally = run_trio(Search(factory, 0, Limits(schedules=24), dict(NARROW)).run)
    assert tally.verdict is Verdict.PASS, (tally.failures, tally.unknown, tally.crashed_checks)
    assert tally.report.refuted == tally.report.suspects > 0
    assert tally.report.pairs > 0


@pytest.mark.slow
def test_in_float64_nothing_is_even_suspected(tiny: Model) -> None:
    tally = run_trio(Search(DecoderFactory(tiny, QUIRK.plant()), 0, Limits(schedules=8)).run)
    assert tally.verdict is Verdict.PASS
    assert tally.report.suspects == 0


@pytest.mark.slow
def test_a_leak_in_the_same_target_is_still_found_and_called_a_leak(tiny: Model) -> None:
    found, count = first_kinds(tiny, FAULTS["stale-length"].plant(QUIRK.plant()))
    assert (Kind.LEAK, CheckName.SWAP) in found
    assert found <= {(Kind.LEAK, CheckName.SWAP), (Kind.OWNERSHIP, CheckName.OWNERSHIP)}
    assert count < 20


@pytest.mark.slow
def test_a_leak_far_below_the_rounding_of_the_same_target_is_still_called_a_leak(tiny: Model) -> None:
    found, count = first_kinds(tiny, leaking(1e-3, Leaks(), QUIRK.plant()))
    assert found == {(Kind.LEAK, CheckName.SWAP)}
    assert count < 20


def test_a_judge_of_a_quirk_measures_the_same_bound_as_of_a_clean_target(tiny: Model) -> None:
    quirky, clean = Judge(DecoderFactory(tiny, QUIRK.plant())), Judge(DecoderFactory(tiny))
    assert quirky.factory.identity == clean.factory.identity
    assert quirky.reference({}).bound == clean.reference({}).bound
