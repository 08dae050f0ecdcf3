"""The API: what clients ask, and what they read, without a socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio

from fuzz.conductor import replay
from stress.endpoint.app import Bounds
from stress.endpoint.tokens import ByteTokenizer
from targets.decoder import DecoderFactory
from targets.models import Model
from targets.protocol import Emitted, Event, Finished, Reason, Request, Sampling, Schedule, Setting, Submit
from tests.fuzz.scripted import Crowded, Honest, Scripted
from tests.stress.visiting import END, JSON, Served, Visit, served

HELLO = tuple(b"hello")
Main = Callable[[Served], Awaitable[None]]


def with_server(factory: Any, main: Main, settings: Mapping[str, Setting] | None = None, **options: Any) -> None:
    """Runs `main` against a server that ends with it."""

    async def both() -> None:
        async with served(factory, settings, **options) as server:
            await main(server)

    trio.run(both)


def alone(factory: DecoderFactory, request: Request) -> list[int]:
    """What a request is answered alone, in a fresh target."""
    trace = replay(factory, Schedule(ops=(Submit(request),)))
    return [token for event in trace if isinstance(event, Finished) for token in event.tokens]


def test_a_completion_is_what_the_target_answers_alone(slots: DecoderFactory) -> None:
    expected = alone(slots, Request(prompt=HELLO, max_new_tokens=9, stop=(END,)))

    async def main(server: Served) -> None:
        answer = await server.complete(max_tokens=9, return_token_ids=True)
        assert answer.status == 200
        (choice,) = answer.json["choices"]
        assert choice["token_ids"] == expected
        assert choice["finish_reason"] == "length"
        assert choice["slotfuzz"] == {"submission": 0, "slots": [0], "cached": 0, "seed": 0}
        assert answer.json["usage"] == {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
        assert (answer.json["object"], answer.json["model"]) == ("text_completion", "tiny")
        by_ids = await server.complete(prompt=list(HELLO), max_tokens=9)
        assert by_ids.json["choices"][0]["text"] == choice["text"]

    with_server(slots, main)


@pytest.mark.parametrize("route", ["complete", "chat"])
def test_a_stream_says_what_the_whole_says(slots: DecoderFactory, route: str) -> None:
    logprobs = {"complete": {"logprobs": 2}, "chat": {"logprobs": True, "top_logprobs": 2}}[route]
    body = {"max_tokens": 24, "return_token_ids": True, "n": 2, "temperature": 1.0, "seed": 7, **logprobs}

    async def main(server: Served) -> None:
        ask = getattr(server, route)
        whole = (await ask(**body)).json
        stream = await ask(**body, stream=True, stream_options={"include_usage": True})
        assert stream.headers["content-type"].startswith("text/event-stream")
        *chunks, last = stream.events
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
        assert {chunk["id"] for chunk in chunks} == {last["id"]}
        for index, choice in enumerate(whole["choices"]):
            pieces = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert [token for piece in pieces for token in piece.get("token_ids", [])] == choice["token_ids"]
            assert pieces[-1]["finish_reason"] == choice["finish_reason"]
            assert all(piece["finish_reason"] is None for piece in pieces[:-1])
            assert pieces[-1]["slotfuzz"]["seed"] == choice["slotfuzz"]["seed"] == 7 + index
            told = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
            if route == "chat":
                assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
                assert "".join(piece["delta"].get("content", "") for piece in pieces) == choice["message"]["content"]
                assert [one for each in told for one in each["content"]] == choice["logprobs"]["content"]
            else:
                assert "".join(piece["text"] for piece in pieces) == choice["text"]
                for name, values in choice["logprobs"].items():
                    assert [one for each in told for one in each[name]] == values
        first, second = whole["choices"]
        assert first["token_ids"] != second["token_ids"]

    with_server(slots, main)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["slots", "pages", "private"])
def test_streams_at_the_same_time_are_answered_as_each_alone(tiny: Model, target: str) -> None:
    factory = DecoderFactory(tiny, name=target)
    requests = [
        Request(
            prompt=(*range(40, 40 + 3 * number % 17), number + 1),
            max_new_tokens=5 + number % 7,
            stop=(END,),
            sampling=Sampling(temperature=number % 2 * 0.8, seed=number),
        )
        for number in range(24)
    ]
    found: dict[int, list[int]] = {}

    async def main(server: Served) -> None:
        async def one(number: int, request: Request) -> None:
            answer = await server.complete(
                prompt=list(request.prompt),
                max_tokens=request.max_new_tokens,
                temperature=request.sampling.temperature,
                seed=number,
                stream=True,
                return_token_ids=True,
            )
            found[number] = [token for event in answer.events for token in event["choices"][0]["token_ids"]]

        async with trio.open_nursery() as nursery:
            for number, request in enumerate(requests):
                nursery.start_soon(one, number, request)
        samples = await server.metrics()
        assert samples["slotfuzz_slots_used"] == samples["slotfuzz_requests_waiting"] == 0
        assert samples['slotfuzz_requests_total{outcome="length"}'] + samples[
            'slotfuzz_requests_total{outcome="stop"}'
        ] == len(requests)

    with_server(factory, main)
    assert found == {number: alone(factory, request) for number, request in enumerate(requests)}


def test_a_stop_string_ends_the_text_before_it_and_the_request(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        text = (await server.complete(max_tokens=40)).json["choices"][0]["text"]
        stop = text[5:9]
        expected = text[: text.index(stop)]
        for stream in (False, True):
            answer = await server.complete(max_tokens=40, stop=["never", stop], stream=stream)
            choices = [event["choices"][0] for event in answer.events] if stream else answer.json["choices"]
            assert "".join(choice["text"] for choice in choices) == expected
            assert choices[-1]["finish_reason"] == "stop"
        assert (await server.metrics())['slotfuzz_requests_total{outcome="stop"}'] == 2

    with_server(slots, main)


def test_an_end_token_is_counted_and_not_shown(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        answer = await server.complete(max_tokens=9, return_token_ids=True, stop_token_ids=[65], logit_bias={65: 100})
        (choice,) = answer.json["choices"]
        assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("", "stop", [65])
        assert answer.json["usage"]["completion_tokens"] == 1

    with_server(slots, main)


class Echo(Honest):
    """Answers with the prompt."""

    def advance(self, submission: int) -> list[Event]:
        request, answer = self.live[submission], self.answers[submission]
        answer.append(request.prompt[len(answer)])
        ended = self.end(submission, Reason.LENGTH) if len(answer) == request.max_new_tokens else []
        return [Emitted(submission, answer[-1]), *ended]


def test_characters_of_several_bytes_are_whole_in_every_stream() -> None:
    factory = Scripted(Echo)
    factory.vocabulary, factory.special_ids = 320, (256, 257, 258)
    texts = ["naïve café", "€ 1,50 — €", "😀😀 ok 😀", "日本語テキスト", "plain"]

    async def main(server: Served) -> None:
        asked = [
            server.visit("/v1/completions", {"prompt": text, "max_tokens": len(text.encode()), "stream": True})
            for text in texts
        ]
        for text, visit in zip(texts, asked, strict=True):
            await visit.over.wait()
            pieces = [event["choices"][0]["text"] for event in visit.answer.events]
            assert [piece for piece in pieces if piece] == list(text)

    with_server(factory, main)


class Forgetful(ByteTokenizer):
    """Has a bug."""

    def read(self, text: str) -> list[int]:
        raise RuntimeError("secret")


def test_a_bug_of_ours_is_told_without_its_details(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        visit = Visit(server.app, "POST", "/v1/completions", (JSON,))
        visit.send_body(b'{"prompt": "a"}')
        with pytest.raises(ExceptionGroup) as raised:
            await visit.run()
        assert raised.group_contains(RuntimeError, match="secret")
        assert (visit.status, visit.answer.error["message"]) == (500, "the server failed")

    with_server(slots, main, tokenizer=Forgetful(320, (256, 257, 258), (257,)))


def test_several_prompts_have_their_choices_in_order(slots: DecoderFactory) -> None:
    expected = [alone(slots, Request(prompt=tuple(prompt), max_new_tokens=3)) for prompt in (b"one", b"two")]

    async def main(server: Served) -> None:
        answer = await server.complete(prompt=["one", "two"], n=2, max_tokens=3, return_token_ids=True)
        choices = answer.json["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [choice["token_ids"] for choice in choices] == [each for each in expected for _ in range(2)]
        assert answer.json["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}

    with_server(slots, main)


def test_the_metrics_count_what_was_done(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        visit = server.visit("/v1/completions", {"prompt": "hello", "max_tokens": 200, "stream": True})
        await visit.pieces(3)
        during = await server.metrics()
        assert during["slotfuzz_slots_used"] == during["slotfuzz_requests_running"] == 1
        visit.hang_up()
        await visit.over.wait()
        await server.complete(prompt=["a", "abc"], max_tokens=4)
        after = await server.metrics()
        assert after["slotfuzz_slots_used"] == after["slotfuzz_requests_running"] == 0
        assert after['slotfuzz_requests_total{outcome="cancelled"}'] == 1
        assert after['slotfuzz_requests_total{outcome="length"}'] == 2
        assert after['slotfuzz_tokens_total{kind="prompt"}'] == 5 + 1 + 3
        # Two prompts of 1 and 3 tokens in one forward are 6 places, of which 2 are padding.
        assert after['slotfuzz_forward_tokens_total{use="padding"}'] == 2
        assert 0 < after["slotfuzz_padding_share"] < 1
        assert after["slotfuzz_slots"] == 4
        rows, forwards = after["slotfuzz_forward_rows_total"], after["slotfuzz_forwards_total"]
        assert after["slotfuzz_batch_fill"] == rows / forwards / 4

    with_server(slots, main)


def test_the_metrics_of_a_paged_target_count_its_pages(tiny: Model) -> None:
    async def main(server: Served) -> None:
        await server.complete(prompt="x" * 40, max_tokens=4)
        await server.complete(prompt="x" * 40, max_tokens=4)
        samples = await server.metrics()
        assert samples["slotfuzz_pages"] == 64
        assert samples["slotfuzz_pages_used"] == 0
        assert samples["slotfuzz_pages_cached"] > 0
        assert samples['slotfuzz_tokens_total{kind="cached"}'] == 39

    with_server(DecoderFactory(tiny, name="pages"), main)


def test_a_target_that_raises_is_an_error_and_not_the_end() -> None:
    async def main(server: Served) -> None:
        visits = [server.visit("/v1/completions", {"prompt": [5], "max_tokens": 4}) for _ in range(3)]
        for visit in visits:
            await visit.over.wait()
            assert visit.answer.status == 500
            assert visit.answer.error["message"] == "the target raised IndexError: row 2 is out of range"
        assert (await server.complete(prompt=[5], max_tokens=4)).status == 200
        assert (await server.metrics())["slotfuzz_targets_replaced_total"] == 1

    with_server(Scripted(Crowded), main)


def test_a_stream_that_fails_says_so_and_ends(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        visit = server.visit("/v1/completions", {"prompt": "hello", "max_tokens": 200, "stream": True})
        await visit.pieces(3)
        await server.driver.drain(0)
        await visit.over.wait()
        *_, error, nothing = visit.body.decode().split("\n\n")
        assert '"message":"the server is shutting down"' in error
        assert nothing == ""
        refused = await server.complete()
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert (await server.get("/health")).status == 503

    with_server(slots, main)


def test_models_are_listed(slots: DecoderFactory) -> None:
    async def main(server: Served) -> None:
        listed = (await server.get("/v1/models")).json
        assert [model["id"] for model in listed["data"]] == ["tiny"]
        assert (await server.get("/v1/models/tiny")).json == listed["data"][0]
        assert (await server.get("/v1/models/gpt-4")).error["code"] == "model_not_found"
        assert (await server.get("/health")).json == {"status": "ok"}
        assert "slotfuzz" not in listed["data"][0], "it was not told what it serves"

    with_server(slots, main, bounds=Bounds())
