"""The sampler: a row's tokens follow from its own request, whoever stands beside it and wherever it stands."""

from __future__ import annotations

import random

import pytest
import torch

from targets.decoder import Sampler
from targets.models import Model
from targets.protocol import Emitted, Finished, Reason, Request, Sampling
from tests.targets.decoder.driving import drain, opened, reasons, request, submit, tokens

VOCABULARY = 24
UNLIKE = (
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 2.0, "seed": 1, "repetition_penalty": 1.5},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 2.0, "frequency_penalty": -0.5},
    {"frequency_penalty": 3.0, "bias": ((3, 4.0), (9, -2.5))},
    {"allowed": (1, 5, 7, 20), "temperature": 0.7},
    {"bias": ((11, 1e9),), "min_new_tokens": 3},
)


def of(new: int = 6, prompt: tuple[int, ...] = (1, 2), stop: tuple[int, ...] = (), **sampling: object) -> Request:
    return Request(prompt=prompt, max_new_tokens=new, stop=stop, sampling=Sampling(**sampling))  # type: ignore[arg-type]


UNLIKE_REQUESTS = tuple(of(prompt=(which, 5), stop=(2, 11), **sampling) for which, sampling in enumerate(UNLIKE))


def logits_for(which: int, position: int) -> torch.Tensor:
    """Made-up logits [V] of one request's token, in a narrow type that has ties."""
    chance = torch.Generator().manual_seed(which * 100 + position)
    return (torch.randn(VOCABULARY, generator=chance) * 3).bfloat16()


def fresh(rows: int = 8) -> Sampler:
    return Sampler(rows, VOCABULARY, torch.device("cpu"))


def alone(which: int, count: int) -> list[int]:
    """A request's tokens when nobody else is there."""
    sampler = fresh(1)
    sampler.join(which, UNLIKE_REQUESTS[which], [])
    answer: list[int] = []
    for position in range(count):
        answer.append(int(sampler.choose([which], logits_for(which, position)[None])))
        sampler.accept(which, answer[-1])
    return answer


@pytest.mark.parametrize("seed", range(12))
def test_alone_and_in_any_batch_in_any_order_and_taken_out_and_back_a_request_gets_the_same_tokens(seed: int) -> None:
    draw, sampler = random.Random(seed), fresh()
    answers: dict[int, list[int]] = {which: [] for which in range(len(UNLIKE))}
    inside: list[int] = []
    for _ in range(60):
        outside = [which for which in answers if which not in inside]
        if outside and draw.random() < 0.6:
            inside.append(draw.choice(outside))
            sampler.join(inside[-1], UNLIKE_REQUESTS[inside[-1]], answers[inside[-1]])
        if inside and draw.random() < 0.4:
            gone = inside.pop(draw.randrange(len(inside)))
            sampler.leave(gone)
        step = draw.sample(inside, draw.randint(0, len(inside)))
        if step:
            rows = torch.stack([logits_for(which, len(answers[which])) for which in step])
            for which, token in zip(step, sampler.choose(step, rows).tolist(), strict=True):
                answers[which].append(token)
                sampler.accept(which, token)
    assert sum(map(len, answers.values())) > 30
    for which, answer in answers.items():
        assert answer == alone(which, len(answer)), UNLIKE[which]


def test_no_two_of_these_requests_are_chosen_alike() -> None:
    logits = torch.stack([logits_for(0, position) for position in range(40)])
    said = set()
    for which, asked in enumerate(UNLIKE_REQUESTS):
        sampler = fresh(1)
        sampler.join(which, asked, [])
        answer = []
        for row in logits:
            answer.append(int(sampler.choose([which], row[None])))
            sampler.accept(which, answer[-1])
        said.add(tuple(answer))
    assert len(said) == len(UNLIKE)


def test_rows_that_are_greedy_take_the_first_of_the_largest_logits_whoever_samples_beside_them() -> None:
    sampler, logits = fresh(), torch.stack([logits_for(which, 0) for which in range(8)])
    logits[0, 4] = logits[0, 9] = logits[0].max() + 1
    for which, asked in enumerate(UNLIKE_REQUESTS):
        sampler.join(which, asked, [])
    assert int(sampler.choose(range(8), logits)[0]) == 4


def test_while_everybody_is_greedy_nothing_is_kept() -> None:
    sampler = fresh()
    sampler.join(0, of(logprobs=3, seed=9, min_new_tokens=2), [4])
    sampler.accept(0, 5)
    assert sampler.choose([0], torch.tensor([[1.0, 3.0, 3.0]])).tolist() == [1]
    assert sampler.slabs is None


def test_a_row_that_was_left_is_clean() -> None:
    sampler = fresh()
    for which, asked in enumerate(UNLIKE_REQUESTS):
        sampler.join(which, asked, [3, 3])
    for which in (0, 3, 7, 1, 2, 6, 5, 4):
        sampler.leave(which)
        assert sampler.slabs is not None
        assert not any(slab[len(sampler.rows) :].any() for slab in sampler.slabs.all())


def test_the_seed_and_the_place_in_the_answer_make_the_noise_and_nothing_else() -> None:
    sampler = fresh()
    sampler.join(0, of(temperature=1.0, seed=5), [])
    sampler.join(1, of(temperature=9.0, seed=5, prompt=(7, 7, 7)), [1, 2])
    early = [sampler.noise(0)]
    for token in (8, 9):
        sampler.accept(0, token)
        early.append(sampler.noise(0))
    assert torch.equal(early[2], sampler.noise(1))
    assert not torch.equal(early[0], early[2])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"temperature": -0.5}, "temperature below zero"),
        ({"temperature": float("nan")}, "sampling parameter not finite"),
        ({"bias": ((1, float("inf")),)}, "sampling parameter not finite"),
        ({"repetition_penalty": 0.0}, "repetition penalty not above zero"),
        ({"bias": ((320, 1.0),)}, "token id past the vocabulary"),
        ({"allowed": (1, 320)}, "token id past the vocabulary"),
        ({"bias": ((1, 1.0), (1, 2.0))}, "two biases on one id"),
        ({"allowed": (5, 6), "min_new_tokens": 1}, "no id may be chosen"),
    ],
    ids=str,
)
def test_parameters_that_can_never_be_honoured_are_refused(tiny: Model, changed: dict[str, object], why: str) -> None:
    decoder = opened(tiny)
    (refused,) = submit(decoder, of(stop=(5, 6), **changed))
    assert getattr(refused, "why", None) == why
    assert not decoder.live


def answer(model: Model, asked: Request) -> tuple[tuple[int, ...], Reason]:
    """What a request is given alone, and why it ends."""
    decoder = opened(model)
    submit(decoder, asked)
    (finished,) = [event for event in drain(decoder) if isinstance(event, Finished)]
    return finished.tokens, finished.reason


def test_a_stop_sequence_ends_an_answer_where_it_is_complete(tiny: Model) -> None:
    said, _ = answer(tiny, request(1, 2, new=6))
    sequences = ((said[1], said[3]), said[2:4], (), said[4:5])
    assert answer(tiny, request(1, 2, new=6, stop_sequences=sequences)) == (said[:4], Reason.STOP)
    prompt_and_answer = (2, said[0])
    assert answer(tiny, request(1, 2, new=6, stop_sequences=(prompt_and_answer,))) == (said, Reason.LENGTH)


@pytest.mark.parametrize(("least", "count"), [(0, 3), (2, 3), (3, 6), (6, 6)])
def test_a_stop_counts_only_behind_the_minimum_also_where_it_is_forced(tiny: Model, least: int, count: int) -> None:
    forced, sampling = (4, 4, 9, 4, 4, 4), Sampling(min_new_tokens=least)
    for stops in ({"stop": (9,)}, {"stop_sequences": ((4, 9),)}):
        said, _ = answer(tiny, request(1, new=6, forced=forced, sampling=sampling, **stops))
        assert said == forced[:count]


def test_no_stop_id_is_chosen_before_the_minimum(tiny: Model) -> None:
    said, _ = answer(tiny, request(1, new=6))
    late, reason = answer(tiny, request(1, new=6, stop=said[:1], sampling=Sampling(min_new_tokens=6)))
    assert said[0] not in late
    assert (len(late), reason) == (6, Reason.LENGTH)


def test_forced_tokens_are_counted_and_move_the_noise_on(tiny: Model) -> None:
    sampling = Sampling(temperature=1.5, seed=3, frequency_penalty=2.0)
    said, _ = answer(tiny, request(1, new=6, sampling=sampling))
    assert answer(tiny, request(1, new=6, sampling=sampling, forced=said[:4]))[0] == said


def test_log_probabilities_are_those_of_the_logits_that_the_network_gave(tiny: Model) -> None:
    decoder = opened(tiny)
    sampling = Sampling(logprobs=2, temperature=3.0, bias=((5, 9.0),))
    submit(
        decoder, request(1, new=3, sampling=sampling), request(2, new=3), request(3, new=1, sampling=Sampling(logprobs=999))
    )
    events = [event for event in drain(decoder) if isinstance(event, Emitted)]
    for event in events:
        if event.submission == 1:
            assert event.logprobs == ()
            continue
        assert event.logits is not None
        expected = event.logits.double().log_softmax(-1)
        assert event.logprobs[0] == (event.token, float(expected[event.token]))
        count = 2 if event.submission == 0 else 320
        assert [value for _, value in event.logprobs[1:]] == expected.sort(descending=True).values[:count].tolist()
        assert all(value == float(expected[token]) for token, value in event.logprobs)
    assert any(event.submission == 0 and event.token != event.logprobs[1][0] for event in events), "it was not the likeliest"


@pytest.mark.slow
def test_a_decoder_gives_a_sampled_request_the_same_tokens_alone_and_in_a_crowd(tiny: Model) -> None:
    asked = [of(new=3 + which, prompt=(which + 1, 9), stop=(5,), **sampling) for which, sampling in enumerate(UNLIKE)]
    decoder = opened(tiny, slots=3)
    submit(decoder, *asked)
    together = drain(decoder)
    for which, one in enumerate(asked):
        decoder = opened(tiny)
        submit(decoder, one, start=which)
        lone = drain(decoder)
        assert tokens(lone)[which] == tokens(together)[which]
        assert reasons(lone)[which] == reasons(together)[which]
