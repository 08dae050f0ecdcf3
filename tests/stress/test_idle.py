"""An endpoint judged by its own idle answers: what departs from them under load, and what only rounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from stress.judging.asking import Endpoint, endpoint
from stress.judging.idle import ENOUGH, Answer, Answers, departs, is_rounding, judge, key_of
from stress.judging.opinion import Standing
from stress.transcript import Exchange, Piece, Question, Usage
from stress.wording import DIALECTS, Dialect, body_of
from targets.decoder import DecoderFactory
from targets.protocol import BadInput, Request, Sampling
from tests.stress.test_server import Listening, with_server

ASKED = Request(prompt=(5, 6), max_new_tokens=3)
IDLE = Answer(key_of(Question(ASKED)), (7, 8, 9), "abc", "length")
HEARD = Exchange(
    number=0,
    user="one",
    request=ASKED,
    sent_s=1.0,
    ended_s=3.0,
    outcome="answered",
    status=200,
    pieces=tuple(Piece(at_s=2.0, text=text, tokens=(token,)) for text, token in zip("abc", (7, 8, 9), strict=True)),
    finish_reason="length",
)


def changed(**changes: object) -> Exchange:
    return msgspec.structs.replace(HEARD, **changes)


def standing(exchange: Exchange, *answers: Answer) -> Standing:
    return judge("a", exchange, answers).standing


def test_what_equals_all_idle_answers_is_right() -> None:
    assert standing(HEARD, IDLE, IDLE) is Standing.RIGHT
    prefix = changed(outcome="cancelled", pieces=HEARD.pieces[:2], finish_reason=None)
    assert standing(prefix, IDLE, IDLE) is Standing.RIGHT
    assert standing(msgspec.structs.replace(prefix, outcome="cut"), IDLE, IDLE) is Standing.LOST
    assert standing(changed(outcome="unreached", pieces=(), finish_reason=None)) is Standing.UNREACHED


@pytest.mark.parametrize(
    "exchange",
    [
        changed(pieces=(*HEARD.pieces[:2], Piece(at_s=2.0, text="c", tokens=(4,)))),
        changed(pieces=HEARD.pieces[:2], finish_reason="length", request=msgspec.structs.replace(ASKED, max_new_tokens=2)),
        changed(pieces=(*HEARD.pieces[:2], Piece(at_s=2.0, text="x", tokens=(9,)))),
        changed(outcome="cancelled", pieces=(Piece(at_s=2.0, text="a", tokens=(8,)),), finish_reason=None),
    ],
    ids=["token", "shorter", "text", "prefix"],
)
def test_what_departs_is_a_suspect(exchange: Exchange) -> None:
    assert standing(exchange, IDLE, IDLE) is Standing.SUSPECT


def test_an_endpoint_that_does_not_repeat_itself_judges_nobody() -> None:
    other = msgspec.structs.replace(IDLE, tokens=(7, 8, 10))
    assert standing(HEARD, IDLE, other) is Standing.UNJUDGED
    assert standing(HEARD, IDLE) is Standing.UNJUDGED
    assert standing(changed(finish_reason="tired"), IDLE, other) is Standing.WRONG, "what is wrong by itself is wrong"


def test_bodies_have_only_the_fields_that_an_endpoint_knows() -> None:
    rich = msgspec.structs.replace(
        ASKED, salt=3, stop=(9,), sampling=Sampling(temperature=0.5, seed=4, bias=((3, 1.0),), presence_penalty=0.5)
    )
    ours, theirs, plain = (body_of(rich, "m", dialect) for dialect in ("slotfuzz", "vllm", "openai"))
    assert ours == theirs | {"salt": 3}
    assert theirs == plain | {"stop_token_ids": [9], "return_token_ids": True, "ignore_eos": True}
    assert plain["logit_bias"] == {"3": 1.0}
    assert (plain["seed"], plain["presence_penalty"], plain["max_tokens"]) == (4, 0.5, 3)


@pytest.mark.slow
def test_every_request_is_asked_twice_and_answers_of_an_earlier_run_count(slots: DecoderFactory, tmp_path: Path) -> None:
    questions = [Question(msgspec.structs.replace(ASKED, prompt=(number, 3))) for number in range(3)]

    async def main(server: Listening) -> None:
        async with endpoint(f"{server.url}/v1") as served:
            first = Answers(tmp_path / "idle.jsonl")
            await first.ask(served, [*questions, questions[0]])
            assert [len(first.of(question)) for question in questions] == [ENOUGH] * 3
            again = Answers(tmp_path / "idle.jsonl")
            await again.ask(served, questions[:2])
            assert [len(again.of(question)) for question in questions] == [ENOUGH + 1, ENOUGH + 1, ENOUGH]
            for question in questions:
                heard = await served.ask(question)
                assert judge("a", heard, again.of(question)).standing is Standing.RIGHT

    with_server(slots, main)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_what_was_asked_as_text_is_asked_again_as_text(
    slots: DecoderFactory, tmp_path: Path, chat: bool, dialect: Dialect
) -> None:
    question = Question(ASKED, "hello", chat)
    answers = Answers(tmp_path / "idle.jsonl")

    async def main(server: Listening) -> None:
        async with endpoint(server.url, dialect=dialect) as served:
            await answers.ask(served, [question, Question(ASKED), Question(ASKED, "hello", not chat)])
            heard = await served.ask(question)
            assert (heard.question, heard.usage and heard.usage.prompt) == (question, 22 if chat else 5)
            assert bool(heard.tokens) is (dialect != "openai"), "who has no field for ids hears text only"
            assert judge("a", heard, answers.of(question)).standing is Standing.RIGHT
            other = msgspec.structs.replace(heard.pieces[-1], text="!")
            tampered = msgspec.structs.replace(heard, pieces=(*heard.pieces[:-1], other))
            assert judge("a", tampered, answers.of(question)).standing is Standing.SUSPECT
            assert not await is_rounding(served, tampered, answers.of(question)[0])
            counted = msgspec.structs.replace(heard, usage=Usage(6, 3))
            assert (
                judge("a", counted, answers.of(question))
                .complaints[0]
                .what.startswith("its usage says 6 prompt tokens, and ")
            )

    with_server(slots, main)
    assert len(answers.known) == 3, "a chat, a text and ids are three requests"


@pytest.mark.slow
def test_beside_copies_of_itself_an_honest_target_gives_the_same(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with endpoint(server.url) as served:
            assert isinstance(served, Endpoint)
            heard = await served.ask(ASKED)
            answer = Answer("", heard.tokens, heard.text, heard.finish_reason)
            other = msgspec.structs.replace(heard, pieces=(Piece(at_s=2.0, tokens=(heard.tokens[0] ^ 1,)),))
            assert not await is_rounding(served, other, answer)
            shifted = Answer("", (heard.tokens[0] ^ 1, *heard.tokens[1:]), heard.text, heard.finish_reason)
            assert departs(heard, shifted) is not None
            assert await is_rounding(served, heard, shifted), "a copy gives what was heard, and no idle answer does"

    with_server(slots, main)


@pytest.mark.slow
def test_where_nobody_listens_is_bad_input() -> None:
    async def main() -> None:
        async with endpoint("http://127.0.0.1:9"):
            pass

    with pytest.raises(
        BadInput, match="--endpoint must be the URL of an OpenAI-compatible endpoint that can be reached, got"
    ):
        trio.run(main)
