"""Refusals: every mistake of a client has its status and says what is wrong, and harms nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from stress.endpoint.app import Bounds
from targets.decoder import DecoderFactory
from targets.models import find_model
from tests.fuzz.scripted import Honest, Scripted
from tests.stress.test_app import with_server
from tests.stress.visiting import Served, Visit, served

CHAT = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", None, "the body must be JSON: Input data was truncated"),
        (b"{", None, "the body must be JSON: Input data was truncated"),
        (b"[" * 100_000, None, "the body must be as documented: Expected `object`, got `array`"),
        (b'{"prompt": "\xff"}', None, "the body must be JSON: Invalid UTF-8 encoded string"),
        ({}, "prompt", "the body must be as documented: Object missing required field `prompt`"),
        ({"prompt": "a", "colour": 1}, "colour", "the body must be as documented: Object contains unknown field `colour`"),
        ({"prompt": ""}, None, "the target refuses the request: empty prompt"),
        ({"prompt": []}, "prompt", "the body must be as documented: Expected `array` of length >= 1 - at `$.prompt`"),
        (
            {"prompt": ["a", 1]},
            "prompt",
            "prompt must be a text, token ids, or a list of one of these, got a mixture",
        ),
        ({"prompt": [320]}, "prompt", "prompt must have token ids below 320, got 320"),
        ({"prompt": "a" * 256}, "prompt", "prompt must have fewer than 256 tokens, got 256"),
        (
            {"prompt": "a", "max_tokens": "9"},
            "max_tokens",
            "the body must be as documented: Expected `int | null`, got `str` - at `$.max_tokens`",
        ),
        (
            {"prompt": "a", "temperature": 2.5},
            "temperature",
            "the body must be as documented: Expected `float` <= 2.0 - at `$.temperature`",
        ),
        ({"prompt": "a", "n": 2, "best_of": 3}, "best_of", "best_of must be as large as n: none is thrown away, got 3"),
        ({"prompt": "a", "echo": True}, "echo", "echo must be false: the prompt is not told again, got true"),
        ({"prompt": ["a"] * 33, "n": 2}, "n", "prompts times n must be at most 64, got 66"),
        ({"prompt": "a", "logit_bias": {"320": 1}}, None, "the target refuses the request: token id past the vocabulary"),
        (
            {"prompt": "a", "logit_bias": {"x": 1}},
            "logit_bias",
            "the body must be as documented: Expected `int`, got `str` - at `key` in `$.logit_bias`",
        ),
        (
            {"prompt": "a", "stop": [""]},
            "stop",
            "the body must be as documented: Expected `str` of length >= 1 - at `$.stop[0]`",
        ),
    ],
)
def test_a_body_that_is_wrong_is_told_why(slots: DecoderFactory, body: object, param: str | None, message: str) -> None:
    async def main(server: Served) -> None:
        answer = await server.ask("/v1/completions", body)
        assert (answer.status, answer.error["message"], answer.error["param"]) == (400, message, param)
        assert answer.error["type"] == "invalid_request_error"

    with_server(slots, main)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": []}, "tools"),
    ],
)
def test_a_conversation_that_is_wrong_is_told_where(slots: DecoderFactory, changes: dict[str, Any], param: str) -> None:
    async def main(server: Served) -> None:
        answer = await server.chat(**changes)
        assert (answer.status, answer.error["param"]) == (400, param)

    with_server(slots, main)


def test_routes_methods_models_and_types_that_there_are_not(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        assert (await server.get("/v1/engines")).error["code"] == "not_found"
        assert (await server.get("/v1/completions/")).status == 404
        wrong = await server.get("/v1/completions")
        assert (wrong.status, wrong.headers["allow"], wrong.error["code"]) == (405, "POST", "method_not_allowed")
        other = await server.complete(model="gpt-4")
        assert (other.status, other.error["code"], other.error["param"]) == (404, "model_not_found", "model")
        visit = Visit(server.app, "POST", "/v1/completions", ((b"content-type", b"text/plain"),))
        visit.send_body(b'{"prompt": "a"}')
        await visit.run()
        assert (visit.status, visit.answer.error["message"]) == (415, "the content type must be application/json")

    with_server(slots, main)


def test_who_has_no_key_is_not_served(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        for headers in ((), ((b"authorization", b"Bearer wrong"),), ((b"authorization", b"\xff"),)):
            answer = await server.ask("/v1/completions", {"prompt": "a"}, *headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert (await server.get("/metrics", *headers)).status == 401
        key = (b"authorization", b"Bearer secret-secret")
        assert (await server.ask("/v1/completions", {"prompt": "a"}, key)).status == 200
        assert (await server.get("/health")).status == 200

    with_server(slots, main, api_key="secret-secret")


def test_a_full_queue_is_told_when_to_come_again(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        first = server.visit("/v1/completions", {"prompt": "a", "max_tokens": 200, "stream": True})
        await first.pieces(1)
        waiting = server.visit("/v1/completions", {"prompt": "b", "max_tokens": 2})
        await server.steps(1)
        answer = await server.complete()
        assert (answer.status, answer.headers["retry-after"], answer.error["code"]) == (429, "1", "queue_full")
        first.hang_up()
        await waiting.over.wait()
        assert waiting.status == 200

    with_server(slots, main, {"slots": 1}, queue_max=1)


def test_a_deadline_is_an_error_of_its_own(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        answer = await server.complete(max_tokens=200, deadline_s=1e-9)
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")

    with_server(slots, main)


def test_a_target_without_sampling_says_so() -> None:
    async def main(server: Served) -> None:
        assert (await server.complete(prompt=[5], seed=3)).status == 200
        answer = await server.complete(prompt=[5], temperature=0.5)
        assert answer.error["message"] == "sampling parameters must be left out: this target takes none"
        text = await server.complete(prompt="hello")
        assert text.error["message"].startswith("prompt must be token ids, or text of bytes below 31")

    with_server(Scripted(Honest), main)


def test_a_body_too_long_is_refused_and_heard_out(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        visit = server.visit("/v1/completions", None)
        for _ in range(400):
            visit.send_body(b"x" * 100, more=True)
            await trio.lowlevel.checkpoint()
        await visit.over.wait()
        assert (visit.status, visit.answer.error["code"]) == (413, "body_too_large")

    with_server(slots, main, bounds=Bounds(body_bytes_max=1000))


def test_a_body_that_does_not_come_is_given_up(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        visit = server.visit("/v1/completions", None)
        visit.send_body(b"{", more=True)
        await visit.over.wait()
        assert (visit.status, visit.answer.error["code"]) == (408, "body_too_slow")

    with_server(slots, main, bounds=Bounds(body_s=0.02))


@pytest.mark.parametrize("stream", [False, True])
def test_who_hangs_up_frees_their_slot_within_a_step(slots: DecoderFactory, stream: bool) -> None:
    async def main(server: Served) -> None:
        visit = server.visit("/v1/completions", {"prompt": "a", "max_tokens": 200, "stream": stream, "n": 3})
        await server.steps(4)
        visit.hang_up()
        await visit.over.wait()
        await server.steps(0)
        audit = await server.driver.audit()
        assert audit is not None
        assert (audit.held, server.driver.live) == ((), {})
        assert server.driver.counters.steps <= 5

    with_server(slots, main)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["prompt", "max_tokens", "n", "stop", "stream", "temperature", "seed", "logit_bias", "logprobs", "salt", "deadline_s"]
)
BODIES = st.dictionaries(FIELDS, VALUES, max_size=6).map(
    lambda body: msgspec.json.encode({"prompt": "hello", "max_tokens": 2} | body)
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(BODIES | st.binary(max_size=60), max_size=8))
def test_whatever_is_sent_is_answered_and_harms_nobody(slots_once: DecoderFactory, bodies: list[bytes]) -> None:
    async def main() -> None:
        async with served(slots_once) as server:
            good = [server.visit("/v1/completions", {"prompt": "hello", "max_tokens": 12}) for _ in range(2)]
            for body in bodies:
                answer = await server.ask("/v1/completions", body)
                assert answer.status in (200, 400, 504)
                if answer.status != 200:
                    assert answer.error["message"]
            for visit in good:
                await visit.over.wait()
            first, second = (visit.answer.json["choices"][0]["text"] for visit in good)
            assert first == second
            assert not server.driver.live

    trio.run(main)


@pytest.fixture(scope="module")
def slots_once() -> DecoderFactory:
    """One for all examples: nothing in it changes."""
    return DecoderFactory(find_model("tiny"))
