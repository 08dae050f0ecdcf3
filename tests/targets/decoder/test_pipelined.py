"""Pipelined steps: results come a step later, and no answer, and nothing that is given back, shows it."""

from __future__ import annotations

import pytest

from targets.decoder import Decoder, DecoderFactory
from targets.protocol import Event, Finished, Freed, Reason, Request, Sampling, Setting
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

ASKED = [request(*range(30, 43), new=4), request(4, new=9), request(*range(30, 41), 9, new=5), request(7, 8, new=1)]
SETTINGS: list[dict[str, Setting]] = [
    {},
    {"slots": 2},
    {"step_tokens_max": 4},
    {"pad_batch": True},
    {"prefill": "apart"},
]


def given(factory: DecoderFactory, *asked: Request, **settings: Setting) -> tuple[Decoder, list[Event]]:
    """What requests are given that come a step apart; everything has landed afterwards."""
    decoder, events = factory.open(settings), []
    for who, each in enumerate(asked):
        events += submit(decoder, each, start=who) + decoder.step()
    return decoder, events + drain(decoder, 400) + decoder.step()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("target", ["slotted", "paged", "private"])
def test_answers_are_those_of_steps_that_are_not_pipelined(
    request: pytest.FixtureRequest, target: str, settings: dict[str, Setting]
) -> None:
    factory: DecoderFactory = request.getfixturevalue(target)
    decoder, ours = given(factory, *ASKED, pipelined=True, **settings)
    _, theirs = given(factory, *ASKED, **settings)
    assert tokens(ours) == tokens(theirs)
    for who in range(len(ASKED)):
        assert close(logits(ours, who), logits(theirs, who))
    assert_all_given_back(decoder)


def test_a_result_comes_one_step_after_its_launch(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"pipelined": True})
    submit(decoder, request(1, 2, new=2))
    said = [[type(event).__name__ for event in decoder.step()] for _ in range(4)]
    assert said == [["Admitted"], ["Emitted"], ["Emitted", "Finished", "Freed"], []]


def test_forced_tokens_are_fed_on_and_not_the_chosen_ones(slotted: DecoderFactory) -> None:
    asked = request(1, 2, 3, new=6, forced=(9, 200, 17, 5))
    _, events = given(slotted, asked, pipelined=True)
    assert tokens(events)[0][:4] == (9, 200, 17, 5)
    assert tokens(events)[0][:4] != tuple(alone(slotted, request(1, 2, 3, new=4)).argmax(-1).tolist())
    assert close(logits(events, 0), alone(slotted, asked))


def test_tokens_that_are_drawn_are_those_of_steps_that_are_not_pipelined(slotted: DecoderFactory) -> None:
    asked = [
        request(1, 2, new=9, sampling=Sampling(temperature=1.5, seed=3)),
        request(4, new=7, sampling=Sampling(repetition_penalty=1.6, frequency_penalty=0.9)),
        request(5, 6, new=5),
    ]
    assert tokens(given(slotted, *asked, pipelined=True)[1]) == tokens(given(slotted, *asked)[1])


def test_a_stop_that_a_forward_in_flight_knows_nothing_of_ends_the_answer_and_nothing_comes_after_it(
    slotted: DecoderFactory,
) -> None:
    answer = alone(slotted, request(1, 2, new=4)).argmax(-1).tolist()
    assert answer[2] not in answer[:2]
    decoder = slotted.open({"pipelined": True})
    events = submit(decoder, request(1, 2, new=9, stop=(answer[2],)))
    while decoder.live:
        events += decoder.step()
    assert (tokens(events)[0], reasons(events)) == (tuple(answer[:3]), {0: Reason.STOP})
    audit = decoder.audit()
    assert [holding.owners for holding in audit.retiring] == [(0,)], "what it held is still written to"
    assert (audit.held, 0 in audit.free) == ((), False)
    assert decoder.step() == [Freed(0, 0)]
    assert decoder.audit().counts["discarded"] == 1
    assert_all_given_back(decoder)


@pytest.mark.parametrize("target", ["slotted", "paged", "private"])
@pytest.mark.parametrize("steps", range(6))
def test_a_cancel_at_any_step_ends_it_gives_all_back_and_leaves_the_others_alone(
    request: pytest.FixtureRequest, target: str, steps: int
) -> None:
    factory: DecoderFactory = request.getfixturevalue(target)
    decoder = factory.open({"pipelined": True, "slots": 2, "step_tokens_max": 8})
    events = submit(decoder, *ASKED[:3])
    for _ in range(steps):
        events += decoder.step()
    for victim in (0, 2):
        said = decoder.cancel(victim, Reason.CANCELLED)
        assert sum(isinstance(event, Finished) for event in said) == 1
        events += said
    events += submit(decoder, ASKED[3], start=3) + drain(decoder) + decoder.step()
    for who in (1, 3):
        assert close(logits(events, who), alone(factory, ASKED[who]))
    assert_all_given_back(decoder)
    freed = [event.submission for event in events if isinstance(event, Freed)]
    assert len(freed) == len(set(freed))


def test_a_slot_with_a_forward_in_flight_is_nobody_else_s_until_that_has_landed(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"pipelined": True, "slots": 1})
    submit(decoder, request(1, 2, new=9), request(3, 4, new=2))
    decoder.step()
    decoder.step()
    decoder.cancel(0, Reason.CANCELLED)
    assert decoder.audit().queued == (1,)
    events = decoder.step()
    assert Freed(0, 0) in events
    assert decoder.audit().queued == (1,), "it was not free when the step began"
    events += drain(decoder)
    assert close(logits(events, 1), alone(slotted, request(3, 4, new=2)))
    assert decoder.audit().counts["cancelled_in_flight"] == 1


def test_cells_of_a_result_that_nobody_wanted_are_not_found_by_others(paged: DecoderFactory) -> None:
    decoder = paged.open({"pipelined": True, "page_size": 1})
    events = submit(decoder, request(1, 2, 3, new=9))
    for _ in range(3):
        events += decoder.step()
    answer = tokens(events)[0]
    events += decoder.cancel(0, Reason.CANCELLED) + decoder.step()
    again = request(1, 2, 3, *answer, 5, new=3)
    events += submit(decoder, again, start=1) + drain(decoder)
    assert close(logits(events, 1), alone(paged, again))


def test_only_named_rows_are_launched(slotted: DecoderFactory) -> None:
    decoder = slotted.open({"pipelined": True})
    asked = [request(1, 2, new=3), request(3, 4, new=3)]
    events = submit(decoder, *asked)
    for rows in ((0,), (0,), (1,), (1,), (0, 1)):
        events += decoder.step(rows)
    events += drain(decoder)
    for who, each in enumerate(asked):
        assert close(logits(events, who), alone(slotted, each))
