from __future__ import annotations

import pytest
import torch

from targets.models import Model
from targets.protocol import Emitted, Finished, Freed, Reason, Refused, Request
from tests.targets.decoder.driving import drain, logits, opened, reasons, request, submit, tokens


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request(), "empty prompt"),
        (request(*[1] * 16), "prompt too long"),
        (request(*[1] * 5000), "prompt too long"),
        (request(1, 320), "token id past the vocabulary"),
        (request(2**31 - 1), "token id past the vocabulary"),
        (request(new=0), "empty prompt"),
    ],
)
def test_what_can_never_be_served_is_refused_and_holds_nothing(tiny: Model, asked: Request, why: str) -> None:
    decoder = opened(tiny, context_tokens_max=16)
    audit = decoder.audit()
    assert submit(decoder, asked) == [Refused(0, why)]
    assert decoder.audit() == audit
    assert decoder.step() == []


def test_who_asks_for_nothing_is_done_at_once(tiny: Model) -> None:
    decoder = opened(tiny)
    assert submit(decoder, request(1, new=0)) == [Finished(0, Reason.LENGTH, ())]
    assert decoder.step() == []


def test_the_longest_prompt_that_fits_gives_one_token(tiny: Model) -> None:
    decoder = opened(tiny, context_tokens_max=16)
    events = submit(decoder, request(*[1] * 15, new=9)) + drain(decoder)
    assert [len(answer) for answer in tokens(events).values()] == [1]
    assert reasons(events) == {0: Reason.CONTEXT}


@pytest.mark.parametrize(("new", "reason"), [(5, Reason.LENGTH), (6, Reason.LENGTH), (7, Reason.CONTEXT)])
def test_an_answer_ends_at_its_budget_or_at_the_context_whichever_comes_first(tiny: Model, new: int, reason: Reason) -> None:
    decoder = opened(tiny, context_tokens_max=16)
    events = submit(decoder, request(*range(10), new=new)) + drain(decoder)
    assert [len(answer) for answer in tokens(events).values()] == [min(new, 6)]
    assert reasons(events) == {0: reason}


@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_answer_ends_with_its_stop_token_also_on_its_last_step(tiny: Model, place: int) -> None:
    free = opened(tiny)
    (answer,) = tokens(submit(free, request(1, 2, 3)) + drain(free)).values()
    assert answer.index(answer[place]) == place
    decoder = opened(tiny)
    events = submit(decoder, request(1, 2, 3, stop=(answer[place],)), request(1, 2, 3)) + drain(decoder)
    assert tokens(events) == {0: answer[: place + 1], 1: answer}
    assert reasons(events) == {0: Reason.STOP, 1: Reason.LENGTH}


def test_forced_tokens_take_the_place_of_greedy_ones_and_greedy_ones_follow(tiny: Model) -> None:
    decoder = opened(tiny)
    events = submit(decoder, request(1, 2, 3, new=5, forced=(7, 8, 9))) + drain(decoder)
    plain = opened(tiny)
    expected = submit(plain, request(1, 2, 3, 7, 8, 9, new=2)) + drain(plain)
    assert tokens(events)[0] == (7, 8, 9, *tokens(expected)[0])
    assert torch.allclose(logits(events, 0)[3:], logits(expected, 0), rtol=0, atol=1e-12)


def test_a_forced_stop_token_ends_an_answer(tiny: Model) -> None:
    decoder = opened(tiny)
    events = submit(decoder, request(1, new=9, forced=(7, 8), stop=(8,))) + drain(decoder)
    assert (tokens(events), reasons(events)) == ({0: (7, 8)}, {0: Reason.STOP})


def test_more_forced_tokens_than_asked_for_are_left_over(tiny: Model) -> None:
    decoder = opened(tiny)
    events = submit(decoder, request(1, new=2, forced=(7, 8, 9))) + drain(decoder)
    assert tokens(events) == {0: (7, 8)}


def test_a_request_ends_once_with_its_whole_answer_and_gives_its_slot_back(tiny: Model) -> None:
    decoder = opened(tiny, slots=2)
    events = submit(decoder, request(1, new=2), request(2, new=3)) + drain(decoder)
    for who in (0, 1):
        *_, last, end, freed = [event for event in events if getattr(event, "submission", None) == who]
        assert isinstance(last, Emitted)
        assert end == Finished(who, Reason.LENGTH, tokens(events)[who])
        assert freed == Freed(who, who)
