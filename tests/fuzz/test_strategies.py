"""Strategies: reproducible, valid, and wide enough that nothing passes by never being drawn."""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import Phase

from fuzz.shrink import sort_key
from fuzz.strategies import FEATURES, Space, batches, knobs, requests, schedules
from fuzz.strategies.dice import SIZE, Dice
from fuzz.strategies.lives import Life
from fuzz.strategies.motifs import MOTIFS, MOTIFS_GUESSED, MOTIFS_POOLED, MOTIFS_SAMPLED, MOTIFS_SHARED, Motif
from fuzz.strategies.schedules import schedule as read
from fuzz.strategies.storms import storm
from targets.decoder import DecoderFactory
from targets.models import Model
from targets.protocol import GREEDY, Cancel, Factory, Schedule, Step, Submit, Wait, check_settings, submissions
from targets.protocol.schedule import check_references
from targets.registry import TargetSpec, build

COUNT = 200
PRINT_KEYS = """
import hashlib, itertools
import fuzz.bench, fuzz.run
from fuzz.strategies import Space, batches, schedules
from targets.registry import TargetSpec, build
drawn = itertools.islice(batches(schedules(Space.of(build(TargetSpec()))), 7), 60)
print(hashlib.sha256(b"".join(schedule.key() for schedule in drawn)).hexdigest())
"""


def draw(factory: Factory, seed: int, count: int) -> list[Schedule]:
    return list(itertools.islice(batches(schedules(Space.of(factory)), seed), count))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_schedules_and_another_gives_others(slots: DecoderFactory) -> None:
    first = draw(slots, 7, 45)
    assert draw(slots, 7, 45) == first
    assert draw(slots, 8, 45) != first


@pytest.mark.slow
def test_the_same_seed_gives_the_same_schedules_in_another_process(slots: DecoderFactory) -> None:
    keys = b"".join(schedule.key() for schedule in draw(slots, 7, 60))
    told = subprocess.run([sys.executable, "-c", PRINT_KEYS], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == hashlib.sha256(keys).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [TargetSpec(), TargetSpec(model="tiny-bloom"), TargetSpec(target="targets.attention:honest")], ids=str
)
def test_every_schedule_is_one_that_the_target_can_be_asked(spec: TargetSpec) -> None:
    factory = build(spec)
    for schedule in draw(factory, 1, COUNT):
        check_references(schedule)
        check_settings(factory.knobs, schedule.settings)
        assert submissions(schedule)
        for request in submissions(schedule):
            assert all(0 <= token <= factory.vocabulary for token in (*request.prompt, *request.stop))
            assert not request.forced
        if not factory.control.rows:
            assert all(op.rows is None for op in schedule.ops if isinstance(op, Step))


def arrive_at_once(schedule: Schedule) -> bool:
    count = len(submissions(schedule))
    return count > 2 and all(isinstance(op, Submit) for op in schedule.ops[:count])


def begin_alike(schedule: Schedule) -> bool:
    starts = [request.prompt[:3] for request in submissions(schedule) if len(request.prompt) > 3]
    return len(set(starts)) < len(starts)


def samples_otherwise(name: str, schedule: Schedule) -> bool:
    return any(getattr(request.sampling, name) != getattr(GREEDY, name) for request in submissions(schedule))


SHOWS: dict[str, Callable[[Schedule], bool]] = {
    "burst": arrive_at_once,
    "cancel": lambda schedule: any(isinstance(op, Cancel) for op in schedule.ops),
    "deadline": lambda schedule: any(request.deadline_s is not None for request in submissions(schedule)),
    "stop": lambda schedule: any(request.stop for request in submissions(schedule)),
    "ids": lambda schedule: any(request.client_id is not None for request in submissions(schedule)),
    "shared-prefix": begin_alike,
    "wait": lambda schedule: any(isinstance(op, Wait) for op in schedule.ops),
    "rows": lambda schedule: any(isinstance(op, Step) and op.rows for op in schedule.ops),
    "tiny-pool": lambda schedule: schedule.settings.get("slots") in (1, 2),
    "settings": lambda schedule: bool(schedule.settings.keys() - {"slots", "context_tokens_max"}),
    "pool outgrown": lambda schedule: schedule.settings.get("pool_tokens", 160) not in (160, 224, 512, 1024),
    "salts": lambda schedule: len({request.salt for request in submissions(schedule)}) > 1,
    "siblings": lambda schedule: any(request.sample_of is not None for request in submissions(schedule)),
    "sessions": lambda schedule: any(request.continues is not None for request in submissions(schedule)),
    "sampling": lambda schedule: any(request.sampling.temperature for request in submissions(schedule)),
    **{
        f"sampling: {name}": functools.partial(samples_otherwise, name)
        for name in (
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "bias",
            "allowed",
            "min_new_tokens",
            "logprobs",
        )
    },
    "stop sequences": lambda schedule: any(request.stop_sequences for request in submissions(schedule)),
    "long prompt": lambda schedule: any(500 <= len(request.prompt) <= 1024 for request in submissions(schedule)),
    "long answer": lambda schedule: any(request.max_new_tokens >= 500 for request in submissions(schedule)),
    "past the vocabulary": lambda schedule: any(320 in request.prompt for request in submissions(schedule)),
    "empty prompt": lambda schedule: any(not request.prompt for request in submissions(schedule)),
    "nothing asked for": lambda schedule: any(request.max_new_tokens == 0 for request in submissions(schedule)),
}


@pytest.mark.slow
def test_every_feature_and_motif_occurs_in_four_thousand_schedules(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(FEATURES) <= set(SHOWS)
    drawn: Counter[str] = Counter()

    def counted(motif: Motif) -> Motif:
        def one(dice: Dice, space: Space) -> list[Life]:
            drawn[motif.__name__] += 1
            return motif(dice, space)

        return one

    # By its path: the package has a function of the same name.
    strategies = importlib.import_module("fuzz.strategies.schedules")
    monkeypatch.setattr(strategies, "MOTIFS", tuple(map(counted, MOTIFS)))
    monkeypatch.setattr(strategies, "MOTIFS_SAMPLED", tuple(map(counted, MOTIFS_SAMPLED)))
    monkeypatch.setattr(strategies, "MOTIFS_SHARED", tuple(map(counted, MOTIFS_SHARED)))
    monkeypatch.setattr(strategies, "MOTIFS_POOLED", tuple(map(counted, MOTIFS_POOLED)))
    monkeypatch.setattr(strategies, "MOTIFS_GUESSED", tuple(map(counted, MOTIFS_GUESSED)))
    pages = DecoderFactory(tiny, name="pages")
    shown = Counter(name for schedule in draw(pages, 3, 4000) for name, shows in SHOWS.items() if shows(schedule))
    assert [name for name in SHOWS if shown[name] < 3] == []
    motifs = (*MOTIFS, *MOTIFS_SAMPLED, *MOTIFS_SHARED, *MOTIFS_POOLED, *MOTIFS_GUESSED)
    assert [motif.__name__ for motif in motifs if drawn[motif.__name__] < 40] == []


@pytest.mark.slow
def test_most_requests_are_greedy_and_what_others_ask_for_is_never_refused(slots: DecoderFactory) -> None:
    asked = [request for schedule in draw(slots, 5, 600) for request in submissions(schedule)]
    unlike = [request for request in asked if request.sampling != GREEDY]
    assert len(asked) / 10 < len(unlike) < len(asked) / 2
    decoder = slots.open({})
    assert [request for request in unlike if decoder.sampler.refusal(request)] == []


def test_a_target_that_does_not_honour_sampling_is_not_asked_for_it() -> None:
    honest = build(TargetSpec(target="targets.attention:honest"))
    asked = [request for schedule in draw(honest, 5, COUNT) for request in submissions(schedule)]
    assert not any(request.sampling != GREEDY or request.stop_sequences for request in asked)


def test_a_target_that_shares_nothing_is_not_asked_for_salts_siblings_or_sessions(slots: DecoderFactory) -> None:
    asked = [request for schedule in draw(slots, 5, COUNT) for request in submissions(schedule)]
    shared = [(request.salt, request.sample_of, request.continues) for request in asked]
    assert set(shared) == {(None, None, None)}


def test_the_dice_are_enough_for_the_longest_story(slots: DecoderFactory) -> None:
    space = Space.of(slots)
    chance = random.Random(1)
    for _ in range(COUNT):
        data = chance.randbytes(SIZE)
        assert read(Dice(data), space) == read(Dice(data + chance.randbytes(SIZE)), space)


@pytest.mark.slow
def test_settings_differ_from_the_defaults_in_a_few_knobs_that_may_be_drawn(slots: DecoderFactory) -> None:
    by_name = {knob.name: knob for knob in slots.knobs}
    seen: set[str] = set()
    for settings in itertools.islice(batches(knobs(slots.knobs), 1), COUNT):
        assert len(settings) <= 3
        for name, value in settings.items():
            assert by_name[name].drawn
            assert value in by_name[name].values
            assert value != by_name[name].default
        seen |= set(settings)
    assert seen == {knob.name for knob in slots.knobs if knob.drawn}


@pytest.mark.slow
def test_a_request_is_greedy_and_within_the_vocabulary(slots: DecoderFactory) -> None:
    for request in itertools.islice(batches(requests(Space.of(slots)), 1), COUNT):
        assert request.prompt
        assert request.max_new_tokens > 0
        assert all(token < slots.vocabulary and token not in slots.special_ids for token in request.prompt)


@pytest.mark.slow
def test_a_plain_hypothesis_test_shrinks_a_schedule(slots: DecoderFactory) -> None:
    seen: list[Schedule] = []

    @hypothesis.settings(
        max_examples=200, database=None, derandomize=True, deadline=None, phases=[Phase.generate, Phase.shrink]
    )
    @hypothesis.given(schedules(Space.of(slots)))
    def nobody_ever_cancels(schedule: Schedule) -> None:
        seen.append(schedule)
        assert not any(isinstance(op, Cancel) for op in schedule.ops)

    with pytest.raises(AssertionError):
        nobody_ever_cancels()
    first = next(schedule for schedule in seen if any(isinstance(op, Cancel) for op in schedule.ops))
    assert any(isinstance(op, Cancel) for op in seen[-1].ops)
    assert sort_key(seen[-1]) < sort_key(first)
    assert len(submissions(seen[-1])) <= 3


def test_a_storm_is_dense_and_its_settings_are_the_targets_own(slots: DecoderFactory) -> None:
    space = Space.of(slots)
    storms = [storm(Dice(random.Random(seed).randbytes(SIZE)), space) for seed in range(60)]
    for _, settings in storms:
        check_settings(slots.knobs, settings)
    asked = [op.request for ops, _ in storms for op in ops if isinstance(op, Submit)]
    assert {len(request.prompt) for request in asked} >= {0, 1, 9}
    assert {request.max_new_tokens for request in asked} >= {0, 1, 20}
    assert any(request.stop and request.deadline_s is not None for request in asked)
    pairs = {(type(one), type(other)) for ops, _ in storms for one, other in itertools.pairwise(ops)}
    assert pairs == set(itertools.product((Submit, Cancel, Step), repeat=2))
    assert max(len(ops) for ops, _ in storms) > 100
    assert {bool(settings.get("pipelined")) for _, settings in storms} == {False, True}
