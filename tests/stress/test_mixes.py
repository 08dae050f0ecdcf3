"""Mixes: the same seed asks the same, everything that can be asked comes, and an endpoint understands all of it."""

from __future__ import annotations

from itertools import islice

import pytest

from stress.endpoint.asking import Asker
from stress.endpoint.tokens import ByteTokenizer
from stress.load.asks import Ask
from stress.load.mixes import PARTY, asks, plain
from stress.load.plan import Plan
from stress.load.shapes import users_at
from stress.load.wording import body_of, spelled
from targets.decoder import DecoderFactory
from targets.protocol import GREEDY
from tests.stress.locusts import planned


def first(plan: Plan, count: int = 300, user: int = 0) -> list[Ask]:
    return list(islice(asks(plan, user), count))


def test_the_same_seed_asks_the_same() -> None:
    assert first(planned()) == first(planned())
    assert first(planned()) != first(planned(seed="2"))
    assert first(planned()) == first(planned(), user=PARTY - 1), "a party plays the same stories"
    assert first(planned()) != first(planned(), user=PARTY)


def test_each_feature_comes_where_it_is_asked_for_and_nowhere_else() -> None:
    def seen(mix: str) -> set[str]:
        found = first(planned(mix=mix))
        return {
            name
            for name, happens in {
                "sessions": lambda ask: ask.before is not None,
                "cancels": lambda ask: ask.hang_up_s is not None or ask.hang_up_tokens is not None,
                "sampling": lambda ask: ask.request.sampling != GREEDY,
            }.items()
            if any(map(happens, found))
        }

    assert seen("lengths") == set()
    assert seen("prefixes") == set()
    assert seen("sessions") == {"sessions"}
    assert seen("cancels") == {"cancels"}
    assert seen("sampling") == {"sampling"}
    assert seen("sessions,cancels,sampling") == {"sessions", "cancels", "sampling"}
    prompts = [ask.request.prompt for ask in first(planned(mix="prefixes"))]
    assert len(set(prompts)) < len(prompts), "identical prompts"


def test_whatever_is_asked_fits_the_context_and_the_vocabulary() -> None:
    for ask in first(planned(context="40", vocabulary="100"), 1000):
        request = ask.request
        assert 1 <= len(request.prompt) <= 20
        assert max(request.prompt) < 100
        assert 1 <= request.max_new_tokens <= 40 - len(request.prompt)


def test_answers_are_as_long_as_they_are_told_to_be() -> None:
    assert {ask.request.max_new_tokens for ask in first(planned(answer_tokens="9"))} == {9}


def test_who_goes_on_waits_for_somebody_who_is_heard_to_the_end() -> None:
    heard: set[int] = set()
    for ask in first(planned(), 1000):
        assert ask.before is None or ask.before in heard
        if ask.hang_up_s is None and ask.hang_up_tokens is None:
            heard.add(ask.turn)


@pytest.fixture
def asker(slots: DecoderFactory) -> Asker:
    return Asker(slots, {}, ByteTokenizer(slots.vocabulary, slots.special_ids, (257,)), "tiny")


def test_an_endpoint_reads_the_request_that_was_meant(asker: Asker) -> None:
    plan = planned()
    for ask in first(plan, 500):
        asked = asker.completion(body_of(ask.request, plan, "tiny", True, None))
        assert asked.requests == (ask.request,)
        assert (asked.stream, asked.ids, asked.usage) == (True, True, True)


def test_an_endpoint_reads_the_text_that_was_meant(asker: Asker) -> None:
    plan = planned(prompts="text")
    for ask in first(plan):
        request, text = spelled(ask.request)
        assert asker.completion(body_of(request, plan, "tiny", False, text)).requests == (request,)
    chat = planned(route="chat", dialect="openai")
    for ask in first(chat):
        request, text = spelled(ask.request)
        (read,) = asker.chat(body_of(request, chat, "tiny", True, text)).requests
        assert bytes(read.prompt) == b"user: " + text.encode() + b"\nassistant:"
        assert read.max_new_tokens == request.max_new_tokens


def test_a_strangers_endpoint_is_sent_nothing_but_openais_fields() -> None:
    plan = planned(dialect="openai")
    for ask in first(plan):
        body = body_of(ask.request, plan, "tiny", True, None)
        for name in (b"ignore_eos", b"token_ids", b"min_tokens", b"salt", b"repetition_penalty"):
            assert name not in body


def test_plain_asks_are_of_one_size() -> None:
    sizes = {(len(ask.request.prompt), ask.request.max_new_tokens) for ask in islice(plain(planned(), 3, 16, 24), 50)}
    assert sizes == {(16, 24)}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("none", [10] * 9),
        ("constant", [10] * 9),
        ("ramp", [1, 2, 5, 8, 10, 10, 10, 10, 10]),
        ("step", [2, 2, 4, 4, 6, 6, 8, 8, 10]),
        ("burst", [10, 2, 10, 2, 10, 2, 10, 2, 10]),
        ("on-off", [10, 0, 10, 0, 10, 0, 10, 0, 10]),
    ],
)
def test_users_come_and_go_as_their_shape_says(shape: str, expected: list[int]) -> None:
    assert [users_at(shape, 5.0 * tick, 10, 40.0, 10.0) for tick in range(9)] == expected  # type: ignore[arg-type]
