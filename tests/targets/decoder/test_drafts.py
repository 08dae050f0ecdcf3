"""Speculation: guesses make an answer come sooner and never otherwise, and what did not come true leaves no trace."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fuzz.conductor import replay
from targets.decoder import DecoderFactory
from targets.decoder.drafts import looked_up
from targets.models import Model, find_model
from targets.protocol import (
    Audited,
    Drafted,
    Emitted,
    Event,
    Finished,
    Op,
    Reason,
    Request,
    Sampling,
    Schedule,
    Setting,
    Step,
    Submit,
)
from tests.targets.decoder.driving import (
    alone,
    assert_all_given_back,
    close,
    drain,
    logits,
    reasons,
    request,
    submit,
    tokens,
)

LOOPS = request(200, new=9)
"""On the default model it says 200 again and again; 152 goes on with 87, 87, 35, where 87 is guessed and is not true."""
GUESSES = ("drafted", "accepted", "rejected", "rolled_back")


def few_words(seed: int) -> tuple[Op, ...]:
    """Requests whose answers are of two to four ids, with parameters of every kind, a step or two apart."""
    dice = random.Random(seed)
    ops: list[Op] = []
    for _ in range(5):
        words = [dice.randrange(3, 300) for _ in range(2 + dice.randrange(3))]
        sampling = Sampling(
            allowed=tuple(words),
            temperature=dice.choice([0, 0, 0.7]),
            seed=dice.randrange(9),
            repetition_penalty=dice.choice([1, 1, 1.1]),
            frequency_penalty=dice.choice([0, 0, 0.2]),
            min_new_tokens=dice.choice([0, 3]),
            logprobs=dice.choice([0, 2]),
        )
        prompt = tuple(dice.choices(words, k=dice.randrange(1, 20)))
        stop = (words[0],) if dice.random() < 0.3 else ()
        ops += [Submit(Request(prompt=prompt, max_new_tokens=dice.randrange(1, 16), sampling=sampling, stop=stop))]
        ops += [Step(dice.randrange(1, 3))] if dice.random() < 0.5 else []
    return tuple(ops)


def played(
    factory: DecoderFactory, ops: tuple[Op, ...], settings: dict[str, Setting]
) -> tuple[dict[int, tuple[object, list[float]]], Counter[str]]:
    """How every request ended, with what it was told of its tokens, and what was counted."""
    trace = replay(factory, Schedule(ops=ops, settings=settings))
    counts = [event.audit.counts for event in trace if isinstance(event, Audited)][-1]
    told: dict[int, list[float]] = {}
    for event in trace:
        if isinstance(event, Emitted) and event.logprobs:
            told.setdefault(event.submission, []).append(event.logprobs[0][1])
    ended = {
        event.submission: ((event.tokens, event.reason), told.get(event.submission, []))
        for event in trace
        if isinstance(event, Finished)
    }
    return ended, Counter({name: counts.get(name, 0) for name in GUESSES})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "settings"),
    [
        ("tiny", "slots", {}),
        ("tiny", "slots", {"step_tokens_max": 4, "slots": 2}),
        ("tiny", "slots", {"pad_batch": True, "prefill": "apart"}),
        ("tiny", "pages", {"page_size": 4, "pool_tokens": 40}),
        ("tiny", "pages", {"page_size": 1, "pool_tokens": 40, "preempt": "move", "references": "grouped"}),
        ("tiny", "private", {"growth": "cat"}),
        ("tiny", "threads", {"turns": 2}),
        ("tiny-gpt2", "slots", {}),
        ("tiny-bloom", "pages", {}),
        ("tiny-gemma3", "slots", {"window": "ring", "ring_append_max": 4}),
        ("tiny-llama4", "slots", {}),
    ],
    ids=str,
)
def test_every_answer_is_the_one_without_guesses(model: str, target: str, settings: dict[str, Setting]) -> None:
    factory, counts = DecoderFactory(find_model(model), name=target), Counter[str]()
    for seed in range(4):
        plain, none = played(factory, few_words(seed), settings)
        guessed, counted = played(factory, few_words(seed), {**settings, "speculate": 1 + seed})
        for who, (answer, logprobs) in plain.items():
            assert guessed[who] == (answer, pytest.approx(logprobs, abs=1e-5)), "the log-probabilities but for rounding"
        assert not none.total()
        counts += counted
    assert counts["drafted"] == counts["accepted"] + counts["rejected"]
    assert all(counts[name] for name in GUESSES)


def test_the_logits_behind_a_guess_are_those_of_the_network_alone(slotted: DecoderFactory) -> None:
    decoder, asked = slotted.open({"speculate": 3}), (LOOPS, request(152, new=8), request(1, 2, 3, new=5))
    events = submit(decoder, *asked) + drain(decoder)
    for who, each in enumerate(asked):
        assert close(logits(events, who), alone(slotted, each))
    assert_all_given_back(decoder)


def test_what_comes_true_comes_in_one_step(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"speculate": 4})
    submit(decoder, LOOPS)
    steps: list[list[Event]] = []
    while decoder.live:
        steps.append(decoder.step())
    assert [len(tokens(events).get(0, ())) for events in steps] == [1, 5, 3]
    assert [event.tokens for events in steps for event in events if isinstance(event, Drafted)] == [4, 2]


def test_a_guess_that_is_not_true_counts_for_nothing(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"speculate": 2})
    submit(decoder, request(152, new=6))
    for cells in (1, 2, 3):
        decoder.step()
        assert decoder.store.lengths[decoder.batch.slots()[0]] == cells
    assert decoder.live[0].answer == [87, 87, 35]
    assert {name: decoder.audit().counts[name] for name in GUESSES} == {
        "drafted": 2,
        "accepted": 0,
        "rejected": 2,
        "rolled_back": 1,
    }


@pytest.mark.parametrize(
    ("changes", "said", "reason"),
    [
        ({"max_new_tokens": 4}, 4, Reason.LENGTH),
        ({"stop_sequences": ((200,) * 3,)}, 3, Reason.STOP),
        ({"max_new_tokens": 60}, 15, Reason.CONTEXT),
    ],
)
def test_an_answer_ends_where_it_must_in_the_midst_of_true_guesses(
    slotted: DecoderFactory, changes: dict[str, object], said: int, reason: Reason
) -> None:
    decoder = slotted.open({"speculate": 8, "context_tokens_max": 16})
    asked = Request(**{"prompt": (200,), "max_new_tokens": 9, **changes})  # type: ignore[arg-type]
    events = submit(decoder, asked) + drain(decoder)
    assert tokens(events)[0] == (200,) * said
    assert reasons(events) == {0: reason}
    assert_all_given_back(decoder)


def test_guesses_take_what_the_step_s_other_tokens_leave(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"speculate": 4, "step_tokens_max": 3})
    submit(decoder, LOOPS)
    decoder.step()
    submit(decoder, request(*range(30, 40), new=1), start=1)
    assert not any(isinstance(event, Drafted) for event in decoder.step()), "the prompt takes the other two"
    while 1 in decoder.live:
        decoder.step()
    assert [event.tokens for event in decoder.step() if isinstance(event, Drafted)] == [2]


def test_a_guess_preempts_nobody(paged: DecoderFactory) -> None:
    decoder = paged.open({"speculate": 4, "page_size": 1, "pool_tokens": 8, "prefix_cache": False})
    events = submit(decoder, request(200, new=4), request(294, new=4)) + drain(decoder)
    assert decoder.audit().counts["preempted"] == 0
    assert {who: len(answer) for who, answer in tokens(events).items()} == {0: 4, 1: 4}


def test_it_rests_where_results_come_a_step_late(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"speculate": 4, "pipelined": True})
    events = submit(decoder, LOOPS) + drain(decoder)
    assert tokens(events)[0] == (200,) * 9
    assert decoder.audit().counts["drafted"] == 0


def test_a_network_whose_state_cannot_go_back_has_no_such_knob(tiny: Model) -> None:
    names = [{knob.name for knob in DecoderFactory(find_model(name)).knobs} for name in ("tiny", "tiny-bamba", "tiny-mamba")]
    assert ["speculate" in some for some in names] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "most", "guess"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),
        ([5, 3, 9, 5, 3, 8, 5, 3], 7, [8, 5, 3, 8, 5, 3, 8]),
        ([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1, [7]),
        ([4, 4], 3, [4, 4, 4]),
        ([1, 2, 3], 3, []),
        ([1], 3, []),
    ],
)
def test_a_guess_is_what_came_behind_the_longest_end_where_it_stood_last(
    text: list[int], most: int, guess: list[int]
) -> None:
    assert looked_up(text, most) == guess
