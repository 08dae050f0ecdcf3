"""Departures: by logits where they are shown, by regret where only tokens are."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from oracle.case import Alphabet
from oracle.checks.echo import echo
from oracle.departure import Suspect, departures
from oracle.reference import Reference
from targets.protocol import Emitted, Kind, Request, Schedule, Submit
from tests.oracle.handmade import case_of, report_of

PROMPT = (5, 17, 3, 200)
BOUND = 1e-6


def suspects(requests: Request | tuple[Request, ...], events: list[Emitted], reference: Reference) -> list[Suspect]:
    """The suspects among requests that were handed in together and heard these events."""
    asked = requests if isinstance(requests, tuple) else (requests,)
    schedule = Schedule(ops=tuple(map(Submit, asked)))
    case = case_of(schedule, tuple(events), references=lambda _: reference, alphabet=Alphabet(320, ()))
    return list(departures(case.requests, case.answers, case.logits, case.reference, case.control))


def test_what_no_network_can_have_said_is_left_to_bookkeeping_and_its_neighbours_are_still_judged(
    reference: Reference,
) -> None:
    right = reference.greedy(Request(prompt=PROMPT, max_new_tokens=2), 64)
    schedule = Schedule(ops=tuple(Submit(Request(prompt=PROMPT, max_new_tokens=2)) for _ in range(3)))
    heard = [Emitted(0, 999), Emitted(1, right[0], torch.zeros(7)), Emitted(2, (right[0] + 1) % 320)]
    case = case_of(schedule, tuple(heard), references=lambda _: reference, alphabet=Alphabet(320, ()))
    assert list(case.sound) == [2]
    answers = {who: case.answers[who] for who in case.sound}
    found = departures(case.requests, answers, case.logits, reference, case.control)
    assert [suspect.submission for suspect in found] == [2]


def silent(answer: tuple[int, ...], who: int = 0) -> list[Emitted]:
    """A stream of tokens without logits."""
    return [Emitted(who, token) for token in answer]


@pytest.fixture
def reference(network: nn.Module) -> Reference:
    return Reference(network, BOUND)


@pytest.fixture
def request_() -> Request:
    return Request(prompt=PROMPT, max_new_tokens=4)


@pytest.fixture
def stream(reference: Reference, request_: Request) -> list[Emitted]:
    """The honest stream, with logits."""
    answer = reference.greedy(request_, 64)
    return [Emitted(0, token, row) for token, row in zip(answer, reference.logits(PROMPT, answer), strict=True)]


def nudged(event: Emitted, by: float) -> Emitted:
    """The same emission with one logit moved."""
    assert event.logits is not None
    logits = event.logits.clone()
    logits[7] += by
    return Emitted(0, event.token, logits)


@pytest.mark.slow
def test_regret_is_zero_exactly_where_the_token_is_the_isolated_greedy_one(network: nn.Module) -> None:
    draw = random.Random(1)
    exact = Reference(network, bound=0.0)
    departed = 0
    for _ in range(60):
        prompt = tuple(draw.choices(range(320), k=draw.randrange(1, 12)))
        request = Request(prompt=prompt, max_new_tokens=5)
        answer = list(exact.greedy(request, 64))
        if draw.random() < 0.5:
            answer[draw.randrange(5)] = draw.randrange(320)
        logits = exact.logits(prompt, tuple(answer))
        best = logits.topk(2, dim=-1).values
        assert bool((best[:, 0] > best[:, 1]).all()), "there is no tie"
        wrong = [index for index, token in enumerate(logits.argmax(-1).tolist()) if token != answer[index]]
        found = suspects(request, silent(tuple(answer)), exact)
        assert [suspect.position for suspect in found] == wrong[:1]
        assert (not found) == (tuple(answer) == exact.greedy(request, 64))
        departed += bool(found)
    assert 20 <= departed <= 40, "both outcomes are tried"


def test_an_honest_stream_is_nobody_s_suspect(reference: Reference, request_: Request, stream: list[Emitted]) -> None:
    assert suspects(request_, stream, reference) == []
    assert suspects(request_, silent(tuple(event.token for event in stream)), reference) == []
    assert suspects(request_, [], reference) == []


def test_a_logit_beyond_the_bound_makes_a_suspect_although_every_token_is_right(
    reference: Reference, request_: Request, stream: list[Emitted]
) -> None:
    stream[2] = nudged(stream[2], 3 * BOUND)
    (suspect,) = suspects(request_, stream, reference)
    assert (suspect.submission, suspect.position, suspect.bound) == (0, 2, BOUND)
    assert suspect.size == pytest.approx(3 * BOUND, rel=1e-3)
    assert suspect.expected == suspect.actual == stream[2].token


def test_a_logit_within_the_bound_does_not(reference: Reference, request_: Request, stream: list[Emitted]) -> None:
    assert suspects(request_, [nudged(event, BOUND / 2) for event in stream], reference) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_logit_that_is_not_finite_makes_a_suspect(
    reference: Reference, request_: Request, stream: list[Emitted], value: float
) -> None:
    stream[1] = nudged(stream[1], value)
    (suspect,) = suspects(request_, stream, reference)
    assert suspect.position == 1


def test_a_token_that_is_not_the_best_of_its_own_right_logits_is_left_to_echo(
    reference: Reference, request_: Request, stream: list[Emitted]
) -> None:
    stream[3] = Emitted(0, (stream[3].token + 1) % 320, stream[3].logits)
    assert suspects(request_, stream, reference) == []
    case = case_of(
        Schedule(ops=(Submit(request_),)), tuple(stream), references=lambda _: reference, alphabet=Alphabet(320, ())
    )
    (finding,) = report_of(echo, case).findings
    assert (finding.kind, finding.position) == (Kind.ECHO, 3)


def test_a_target_that_shows_no_logits_is_judged_by_regret(reference: Reference, request_: Request) -> None:
    answer = reference.greedy(request_, 64)
    wrong = (*answer[:2], (answer[2] + 1) % 320, answer[3])
    (suspect,) = suspects(request_, silent(wrong), reference)
    row = reference.logits(PROMPT, wrong)[2]
    assert (suspect.position, suspect.expected, suspect.actual) == (2, answer[2], wrong[2])
    assert suspect.size == pytest.approx(float(row.max() - row[wrong[2]]))


def test_forced_positions_are_not_judged_by_regret(reference: Reference) -> None:
    forced = (1, 2)
    request = Request(prompt=PROMPT, max_new_tokens=4, forced=forced)
    answer = reference.greedy(request, 64)
    assert suspects(request, silent(answer), reference) == []
    (suspect,) = suspects(request, silent((*answer[:3], (answer[3] + 1) % 320)), reference)
    assert suspect.position == 3
    unforced = Request(prompt=PROMPT, max_new_tokens=4)
    assert suspects(unforced, silent(answer), reference)[0].position == 0


def test_forced_positions_are_still_judged_by_their_logits(reference: Reference) -> None:
    request = Request(prompt=PROMPT, max_new_tokens=2, forced=(1, 2))
    stream = [Emitted(0, token, row) for token, row in zip((1, 2), reference.logits(PROMPT, (1, 2)), strict=True)]
    assert suspects(request, stream, reference) == []
    assert suspects(request, [stream[0], nudged(stream[1], 1.0)], reference)[0].position == 1


def test_each_submission_is_measured_against_its_own_prompt(reference: Reference) -> None:
    requests = tuple(Request(prompt=prompt, max_new_tokens=3) for prompt in ((1, 2), (9,), (7, 7, 7)))
    answers = [reference.greedy(request, 64) for request in requests]
    heard = silent(answers[2], who=2) + silent(answers[0])
    assert suspects(requests, heard, reference) == []
    heard[1] = Emitted(2, (answers[2][1] + 1) % 320)
    assert [(suspect.submission, suspect.position) for suspect in suspects(requests, heard, reference)] == [(2, 1)]


def test_half_precision_logits_are_compared_without_overflow(network: nn.Module) -> None:
    reference = Reference(network, bound=1e5)
    row = torch.full((320,), 6e4, dtype=torch.float16)
    stream = [Emitted(0, reference.greedy(Request(prompt=PROMPT, max_new_tokens=1), 64)[0], row)]
    assert suspects(Request(prompt=PROMPT, max_new_tokens=1), stream, reference) == []
