"""The oracle's own sampling: by hand, and against the decoder's, with which it shares no code."""

from __future__ import annotations

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from oracle.case import Alphabet
from oracle.departure import departures
from oracle.reference import Reference
from oracle.sampling import choice, gumbel, is_judged, is_plain, is_stopped, scores
from targets.decoder import Sampler
from targets.protocol import Control, Emitted, Request, Sampling, Schedule, Submit
from tests.oracle.handmade import case_of

VOCABULARY = 12
LOGITS = torch.tensor([2.0, -1.0, 3.0, 0.5])
SILENT = Control(sampling=True, noise=True)


def of(prompt: tuple[int, ...] = (0,), stop: tuple[int, ...] = (), new: int = 4, **sampling: object) -> Request:
    return Request(prompt=prompt, max_new_tokens=new, stop=stop, sampling=Sampling(**sampling))  # type: ignore[arg-type]


NUMBERS = st.floats(-20, 20, width=32)
IDS = st.integers(0, VOCABULARY - 1)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 0.0, 0.01, 0.7, 1.0, 30.0)),
    seed=st.integers(0, 1_000_000),
    repetition_penalty=st.sampled_from((1.0, 0.1, 1.3, 50.0)),
    presence_penalty=NUMBERS,
    frequency_penalty=NUMBERS,
    bias=st.dictionaries(IDS, st.sampled_from((0.1, -3.0, 1e9, -1e9)), max_size=4).map(lambda bias: tuple(bias.items())),
    allowed=st.lists(IDS, unique=True, max_size=5).map(tuple),
    min_new_tokens=st.integers(0, 4),
)
TOKENS = st.lists(IDS, max_size=6).map(tuple)
REQUESTS = st.builds(
    Request,
    prompt=st.lists(IDS, min_size=1, max_size=5).map(tuple),
    max_new_tokens=st.just(9),
    stop=st.lists(IDS, unique=True, max_size=4).map(tuple),
    sampling=SAMPLINGS,
)
DTYPES = st.sampled_from((torch.float64, torch.float32, torch.bfloat16))


@pytest.mark.slow
@hypothesis.settings(max_examples=150)
@hypothesis.given(st.lists(st.tuples(REQUESTS, TOKENS, st.integers(0, 999)), min_size=1, max_size=4), DTYPES)
def test_the_decoder_and_the_oracle_choose_the_same_token(
    asked: list[tuple[Request, tuple[int, ...], int]], dtype: torch.dtype
) -> None:
    sampler = Sampler(len(asked), VOCABULARY, torch.device("cpu"))
    asked = [each for each in asked if sampler.refusal(each[0]) is None]
    hypothesis.assume(asked)
    rows = [torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)).mul(4).to(dtype) for _, _, seed in asked]
    for which, (request, answer, _) in enumerate(asked):
        sampler.join(which, request, answer)
    chosen = sampler.choose(range(len(asked)), torch.stack(rows)).tolist()
    for token, row, (request, answer, _) in zip(chosen, rows, asked, strict=True):
        given = scores(request, answer, row)
        assert given.regret(token) <= given.rounding(token)
        if is_plain(request):
            assert choice(request, answer, row) == token


@pytest.mark.parametrize(
    ("request_", "answer", "expected"),
    [
        pytest.param(of(), (2,), [2.0, -1.0, 3.0, 0.5], id="greedy"),
        pytest.param(of((1, 2), repetition_penalty=2.0), (3,), [2.0, -2.0, 1.5, 0.25], id="repetition: prompt and answer"),
        pytest.param(of((1, 2), presence_penalty=2.0), (3, 3), [2.0, -1.0, 3.0, -1.5], id="presence: once, the answer only"),
        pytest.param(
            of((1, 2), frequency_penalty=2.0), (3, 3), [2.0, -1.0, 3.0, -3.5], id="frequency: as often as it stands"
        ),
        pytest.param(of(bias=((1, 9.0), (2, -0.1))), (), [2.0, 8.0, 2.9, 0.5], id="bias"),
        pytest.param(of(allowed=(1, 3)), (), [-math.inf, -1.0, -math.inf, 0.5], id="allowed"),
        pytest.param(of(stop=(2,), min_new_tokens=2), (0,), [2.0, -1.0, -math.inf, 0.5], id="too early to stop"),
        pytest.param(of(stop=(2,), min_new_tokens=2), (0, 0), [2.0, -1.0, 3.0, 0.5], id="late enough to stop"),
        pytest.param(
            of((2,), repetition_penalty=2.0, frequency_penalty=1.0, bias=((2, 10.0),)),
            (2,),
            [2.0, -1.0, 10.5, 0.5],
            id="order",
        ),
    ],
)
def test_each_stage_by_hand(request_: Request, answer: tuple[int, ...], expected: list[float]) -> None:
    kept = LOGITS.double()
    given = scores(request_, answer, kept)
    assert given.values.tolist() == expected
    assert kept.tolist() == LOGITS.tolist(), "the emission's own logits are left alone"


def test_a_temperature_divides_and_adds_the_noise_of_seed_and_place() -> None:
    given = scores(of(temperature=2.0, seed=3), (1, 1), LOGITS)
    even = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(3 * 1_000_003 + 2))
    expected = LOGITS.double() / 2 + torch.tensor(
        [-math.log(-math.log(each)) for each in even.tolist()], dtype=torch.float64
    )
    assert torch.allclose(given.values, expected, rtol=0, atol=1e-14)
    assert torch.equal(given.values, LOGITS.double() / 2 + gumbel(3, 2, 4))


def test_every_one_of_the_largest_is_a_rightful_choice_and_less_than_rounding_is_no_regret() -> None:
    tied = torch.tensor([1.0, 5.0, 5.0, 2.0])
    given = scores(of(bias=((0, 1.0),)), (), tied)
    assert given.choice == 1
    assert [given.regret(token) for token in range(4)] == [3.0, 0.0, 0.0, 3.0]
    close = torch.tensor([5.0, 5.0 - 1e-13], dtype=torch.float64)
    assert not scores(of(bias=((0, 0.0),)), (), close).regret(1) <= scores(of(bias=((0, 0.0),)), (), close).rounding(1)


def test_where_nothing_may_be_chosen_nothing_is_regretted() -> None:
    assert scores(of(allowed=(1,), stop=(1,), min_new_tokens=1), (), LOGITS).regret(3) == 0.0


@pytest.mark.parametrize(
    ("asked", "plain", "with_noise", "without_noise", "unpromised"),
    [
        (of(), True, True, True, True),
        (of(logprobs=4, seed=7), True, True, True, True),
        (of(min_new_tokens=3), True, True, True, True),
        (of(min_new_tokens=3, stop=(1,)), False, True, True, False),
        (of(bias=((1, 1.0),)), False, True, True, False),
        (of(temperature=0.5), False, True, False, False),
        (of(temperature=-1.0), False, False, False, False),
        (of(repetition_penalty=0.0), False, False, False, False),
    ],
)
def test_what_is_judged_is_what_the_target_promises(
    asked: Request, plain: bool, with_noise: bool, without_noise: bool, unpromised: bool
) -> None:
    assert is_plain(asked) == plain
    assert is_judged(asked, SILENT) == with_noise
    assert is_judged(asked, Control(sampling=True)) == without_noise
    assert is_judged(asked, Control()) == unpromised


@pytest.mark.parametrize(
    ("answer", "stopped"),
    [((), False), ((1,), False), ((7,), False), ((1, 2, 7), True), ((7, 1, 2), False), ((1, 4, 5), True), ((4, 5), False)],
)
def test_a_stop_counts_behind_the_minimum(answer: tuple[int, ...], stopped: bool) -> None:
    request = Request(
        prompt=(4,), max_new_tokens=9, stop=(7,), stop_sequences=((4, 5), ()), sampling=Sampling(min_new_tokens=2)
    )
    assert is_stopped(request, answer) == stopped
    assert is_stopped(request, answer, honoured=False) == (answer[-1:] == (7,))


UNLIKE = (
    of((5, 17, 3), temperature=1.0, seed=4),
    of((5, 17, 3), repetition_penalty=3.0, frequency_penalty=-50.0),
    of((5, 17, 3), allowed=(3, 9, 200), temperature=0.5),
    of((5, 17, 3), bias=((9, 50.0),), stop=(9,), min_new_tokens=2),
)


@pytest.mark.parametrize("asked", UNLIKE, ids=range(4))
def test_a_target_that_shows_no_logits_is_judged_by_its_regret_under_processed_ones(
    network: nn.Module, asked: Request
) -> None:
    reference = Reference(network, bound=1e-9)
    right = reference.greedy(asked, 64)
    plain = reference.greedy(Request(prompt=asked.prompt, max_new_tokens=4), 64)
    assert right != plain, "the parameters change something"

    def suspects(answer: tuple[int, ...], control: Control) -> list[int]:
        case = case_of(
            Schedule(ops=(Submit(asked),)),
            tuple(Emitted(0, token) for token in answer),
            references=lambda _: reference,
            alphabet=Alphabet(320, ()),
            control=control,
        )
        found = departures(case.requests, case.answers, case.logits, reference, control)
        return [suspect.position for suspect in found]

    assert suspects(right, SILENT) == []
    wrong = (*right[:-1], (right[-1] + 1) % 320)
    assert suspects(wrong, SILENT) == [len(right) - 1]
    judged_without_noise = not asked.sampling.temperature
    assert suspects(wrong, Control(sampling=True)) == ([len(right) - 1] if judged_without_noise else [])
    assert suspects(wrong, Control()) == []


def test_the_isolated_answer_obeys_its_stops(network: nn.Module) -> None:
    reference, asked = Reference(network), Request(prompt=(5, 17, 3), max_new_tokens=6)
    whole = reference.greedy(asked, 64)
    ended = Request(prompt=(5, 17, 3), max_new_tokens=6, stop_sequences=(whole[1:3],))
    assert reference.greedy(ended, 64) == whole[:3]
