"""Tokens against a local reference: right ones pass, and whatever is changed about them is found."""

from __future__ import annotations

import msgspec
import pytest

from oracle.reference import Reference
from oracle.rounding import bound
from stress.endpoint.tokens import ByteTokenizer
from stress.judging.network import NetworkJudge
from stress.judging.opinion import Opinion, Standing
from stress.transcript import Exchange, Piece, Usage
from targets.decoder import DecoderFactory
from targets.models import Model
from targets.protocol import Kind, Request, Sampling

PLAIN = Request(prompt=(5, 6, 7, 8), max_new_tokens=8)
SAMPLED = msgspec.structs.replace(PLAIN, sampling=Sampling(temperature=1.0, seed=3))


@pytest.fixture(scope="module")
def judge(tiny: Model) -> NetworkJudge:
    network = tiny.load("float64", "float64", "cpu")
    factory = DecoderFactory(tiny)
    tokenizer = ByteTokenizer(factory.vocabulary, factory.special_ids, (257,))
    return NetworkJudge(Reference(network, bound(network, factory.vocabulary)), factory.control, 320, 256, tokenizer)


def heard(request: Request, tokens: tuple[int, ...], logprobs: tuple[float | None, ...] = (), **changes: object) -> Exchange:
    """As it would be heard, a token a piece, without text."""
    writer = ByteTokenizer(320, (256, 257, 258, 259), (257,)).writer()
    texts = [writer.push(token) for token in tokens]
    told: list[tuple[float | None, ...]] = [(logprob,) for logprob in logprobs] or [()] * len(tokens)
    pieces = [
        Piece(at_s=2.0, text=text, tokens=(token,), logprobs=each)
        for text, token, each in zip(texts, tokens, told, strict=True)
    ]
    pieces.append(Piece(at_s=2.0, text=writer.flush()))
    exchange = Exchange(
        number=1,
        user="one",
        request=request,
        sent_s=1.0,
        ended_s=3.0,
        outcome="answered",
        status=200,
        pieces=tuple(pieces),
        finish_reason="length",
        usage=Usage(len(request.prompt), len(tokens)),
    )
    return msgspec.structs.replace(exchange, **changes)


def said(judge: NetworkJudge, exchange: Exchange) -> tuple[Standing, Kind | None]:
    opinion = judge.judge("a", exchange)
    return opinion.standing, opinion.complaints[0].kind if opinion.complaints else None


def alone(judge: NetworkJudge, request: Request) -> tuple[int, ...]:
    return judge.reference.greedy(request, 256)


@pytest.mark.parametrize("request_", [PLAIN, SAMPLED], ids=["greedy", "sampled"])
def test_what_a_request_gets_alone_is_right(judge: NetworkJudge, request_: Request) -> None:
    tokens = alone(judge, request_)
    opinion = judge.judge("a", heard(request_, tokens))
    assert opinion == Opinion(
        source="a", number=1, outcome="answered", standing=Standing.RIGHT, tokens=8, judged=8, complaints=opinion.complaints
    )
    assert opinion.complaints == ()


@pytest.mark.parametrize("position", range(8))
def test_one_token_that_is_another_is_wrong(judge: NetworkJudge, position: int) -> None:
    tokens = list(alone(judge, PLAIN))
    tokens[position] = (tokens[position] + 1) % 256
    opinion = judge.judge("a", heard(PLAIN, tuple(tokens)))
    assert opinion.standing is Standing.WRONG
    assert opinion.complaints[0].position == position
    assert opinion.complaints[0].expected == alone(judge, PLAIN)[position]


def test_the_noise_of_another_seed_is_wrong(judge: NetworkJudge) -> None:
    other = msgspec.structs.replace(SAMPLED, sampling=Sampling(temperature=1.0, seed=4))
    assert said(judge, heard(SAMPLED, alone(judge, other)))[0] is Standing.WRONG


def test_what_a_client_heard_before_it_hung_up_must_be_right(judge: NetworkJudge) -> None:
    tokens = alone(judge, PLAIN)[:3]
    told = {"outcome": "cancelled", "finish_reason": None, "usage": None}
    assert said(judge, heard(PLAIN, tokens, **told)) == (Standing.RIGHT, None)
    assert said(judge, heard(PLAIN, (*tokens[:2], tokens[2] ^ 1), **told))[0] is Standing.WRONG


@pytest.mark.parametrize(("outcome", "status"), [("cut", 200), ("failed", 504)])
def test_what_broke_off_is_lost_and_wrong_where_it_is_wrong(judge: NetworkJudge, outcome: str, status: int) -> None:
    told = {"outcome": outcome, "status": status, "finish_reason": None, "usage": None}
    tokens = alone(judge, PLAIN)[:3]
    assert said(judge, heard(PLAIN, tokens, **told)) == (Standing.LOST, None)
    assert said(judge, heard(PLAIN, (tokens[0], tokens[1] ^ 1), **told))[0] is Standing.WRONG


def test_what_never_reached_the_endpoint_is_neither_right_nor_wrong(judge: NetworkJudge) -> None:
    told = {"outcome": "unreached", "status": 0, "finish_reason": None, "usage": None}
    assert said(judge, heard(PLAIN, (), **told)) == (Standing.UNREACHED, None)


def test_pieces_lost_doubled_and_late_are_called_so(judge: NetworkJudge) -> None:
    tokens = alone(judge, PLAIN)
    ways = {
        "lost": tokens[:3] + tokens[4:],
        "doubled": tokens[:4] + tokens[3:7],
        "told too late": (*tokens[:3], tokens[4], tokens[3], *tokens[5:]),
    }
    for way, heard_tokens in ways.items():
        opinion = judge.judge("a", heard(PLAIN, heard_tokens))
        assert opinion.standing is Standing.WRONG
        assert opinion.complaints[0].kind is Kind.BOOKKEEPING
        assert opinion.complaints[0].what == f"token 3 of the answer that it gets alone is {way}"


def test_log_probabilities_are_held_against_the_reference(judge: NetworkJudge) -> None:
    request = msgspec.structs.replace(PLAIN, sampling=Sampling(logprobs=1))
    tokens = alone(judge, request)
    logits = judge.reference.logits(request.prompt, tokens).log_softmax(-1)
    right = tuple(float(logits[place, token]) for place, token in enumerate(tokens))
    assert said(judge, heard(request, tokens, right)) == (Standing.RIGHT, None)
    off = (*right[:5], right[5] + 1e-9, *right[6:])
    opinion = judge.judge("a", heard(request, tokens, off))
    assert (opinion.standing, opinion.complaints[0].position) == (Standing.WRONG, 5), "the tokens are right, and yet"
    assert said(judge, heard(request, tokens, (*right[:5], float("nan"), *right[6:])))[1] is Kind.NONFINITE
    assert said(judge, heard(request, tokens, (*right[:5], None, *right[6:])))[1] is Kind.NONFINITE, "as JSON has it"


def test_ids_outside_the_vocabulary_are_wrong(judge: NetworkJudge) -> None:
    assert said(judge, heard(PLAIN, (*alone(judge, PLAIN)[:7], 320))) == (Standing.WRONG, Kind.BOOKKEEPING)


def test_in_float32_what_departs_is_a_suspect_only(judge: NetworkJudge, tiny: Model) -> None:
    network = tiny.load("float32", "float32", "cpu")
    rough = NetworkJudge(Reference(network, bound(network, 320)), judge.control, 320, 256, judge.tokenizer)
    tokens = alone(judge, PLAIN)
    assert said(rough, heard(PLAIN, tokens)) == (Standing.RIGHT, None)
    assert said(rough, heard(PLAIN, (tokens[0] ^ 1, *tokens[1:])))[0] is Standing.SUSPECT
    assert said(rough, heard(PLAIN, tokens, usage=Usage(4, 9)))[0] is Standing.WRONG, "counts need no rounding"


def test_noise_that_nobody_promised_leaves_a_sample_unjudged(judge: NetworkJudge) -> None:
    foreign = NetworkJudge(judge.reference, judge.control, 320, 256, judge.tokenizer, foreign=True)
    tokens = alone(judge, SAMPLED)
    assert said(foreign, heard(SAMPLED, tokens))[0] is Standing.UNJUDGED
    assert said(foreign, heard(PLAIN, alone(judge, PLAIN)))[0] is Standing.RIGHT
    request = msgspec.structs.replace(SAMPLED, sampling=Sampling(temperature=1.0, seed=3, logprobs=1))
    logits = judge.reference.logits(request.prompt, tokens).log_softmax(-1)
    right = tuple(round(float(logits[place, token]), 7) for place, token in enumerate(tokens))
    assert said(foreign, heard(request, tokens, right))[0] is Standing.RIGHT, "its log-probabilities can be judged"


def test_a_text_whose_ids_are_not_told_is_compared_as_text(judge: NetworkJudge) -> None:
    writer = ByteTokenizer(320, (256, 257, 258, 259), ()).writer()
    text = "".join(writer.push(token) for token in alone(judge, PLAIN)) + writer.flush()
    whole = heard(PLAIN, (), pieces=(Piece(at_s=2.0, text=text),), usage=None)
    assert said(judge, whole) == (Standing.RIGHT, None)
    other = msgspec.structs.replace(whole, pieces=(Piece(at_s=2.0, text="x" + text),))
    assert said(judge, other)[0] is Standing.WRONG


@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_that_was_text_is_read_as_the_endpoint_reads_it(judge: NetworkJudge, chat: bool) -> None:
    text = "user: hello\nassistant:" if chat else "hello"
    request = msgspec.structs.replace(PLAIN, prompt=tuple(text.encode()))
    right = heard(request, alone(judge, request), prompt_text="hello", chat=chat)
    assert said(judge, right) == (Standing.RIGHT, None)
    assert said(judge, msgspec.structs.replace(right, usage=None)) == (Standing.RIGHT, None)
    assert said(judge, msgspec.structs.replace(right, chat=not chat))[0] is Standing.UNJUDGED, "another count of tokens"
    assert said(judge, msgspec.structs.replace(right, chat=not chat, usage=None))[0] is Standing.WRONG
