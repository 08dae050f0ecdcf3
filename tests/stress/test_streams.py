"""What is wrong with a response by itself: a right one passes, and each change to it is found."""

from __future__ import annotations

import msgspec
import pytest

from stress.endpoint.tokens import ByteTokenizer
from stress.judging.streams import complaints
from stress.transcript import Exchange, Piece, Usage
from targets.protocol import Kind, Request, Sampling

TOKENIZER = ByteTokenizer(300, (), ())
ASKED = Request(prompt=(1, 2, 3), max_new_tokens=4, stop=(9,))
RIGHT = Exchange(
    number=0,
    user="one",
    request=ASKED,
    sent_s=1.0,
    ended_s=3.0,
    outcome="answered",
    status=200,
    pieces=tuple(Piece(at_s=2.0, text=chr(token), tokens=(token,)) for token in (97, 98, 99, 100)),
    finish_reason="length",
    usage=Usage(3, 4),
)
STOPPED = msgspec.structs.replace(
    RIGHT,
    pieces=(RIGHT.pieces[0], Piece(at_s=2.0, tokens=(9,))),
    finish_reason="stop",
    usage=Usage(3, 2),
)


def changed(exchange: Exchange = RIGHT, **changes: object) -> Exchange:
    return msgspec.structs.replace(exchange, **changes)


def asking(**changes: object) -> Exchange:
    return changed(request=msgspec.structs.replace(ASKED, **changes))


def told(exchange: Exchange, context: int | None = 256) -> list[tuple[Kind | None, str]]:
    return [(complaint.kind, complaint.what) for complaint in complaints(exchange, TOKENIZER, context)]


CUT = changed(outcome="cut", pieces=RIGHT.pieces[:2], finish_reason=None, usage=None)


@pytest.mark.parametrize(
    "exchange",
    [
        RIGHT,
        STOPPED,
        CUT,
        changed(CUT, outcome="cancelled"),
        changed(outcome="refused", status=429, pieces=(), finish_reason=None, usage=None),
        changed(outcome="failed", status=504, pieces=(), finish_reason=None, usage=None, error="past its deadline"),
        changed(pieces=(Piece(at_s=2.0, text="abcd", tokens=(97, 98, 99, 100)),)),
        changed(pieces=(*RIGHT.pieces[:3], Piece(at_s=2.0, tokens=(100,)), Piece(at_s=2.0, text="d"))),
    ],
    ids=["whole", "stopped", "cut", "cancelled", "refused", "deadline", "in one piece", "text that lags"],
)
def test_nothing_is_said_of_a_right_response(exchange: Exchange) -> None:
    assert told(exchange) == []


def test_an_answer_may_end_where_its_context_does() -> None:
    short = changed(pieces=RIGHT.pieces[:2], usage=Usage(3, 2))
    assert told(short, context=5) == []
    assert told(short) == [(Kind.BOOKKEEPING, "it ends with the reason 'length' after 2 of 4 tokens")]


A, B, C, D = RIGHT.pieces


@pytest.mark.parametrize(
    ("exchange", "kind", "what"),
    [
        (asking(max_new_tokens=3), Kind.BOOKKEEPING, "token 4 of 3"),
        (asking(stop=(98,)), Kind.BOOKKEEPING, "it goes on after its stop, which ends with 98"),
        (asking(sampling=Sampling(allowed=(97, 98))), Kind.ECHO, "token 99, which is not among its allowed ids"),
        (
            changed(STOPPED, request=msgspec.structs.replace(ASKED, sampling=Sampling(min_new_tokens=3))),
            Kind.ECHO,
            "a stop id, before 3 tokens stand",
        ),
        (changed(finish_reason=None), Kind.BOOKKEEPING, "it ends without a reason"),
        (changed(finish_reason="stop"), Kind.BOOKKEEPING, "it ends with the reason 'stop' after 4 tokens, none of which is"),
        (changed(finish_reason="tired"), Kind.BOOKKEEPING, "it ends with the reason 'tired'"),
        (
            changed(STOPPED, finish_reason="length"),
            Kind.BOOKKEEPING,
            "it ends with the reason 'length' after 2 of 4 tokens, with its stop",
        ),
        (changed(usage=Usage(4, 4)), Kind.BOOKKEEPING, "its usage says 4 prompt tokens of 3"),
        (changed(usage=Usage(3, 5)), Kind.BOOKKEEPING, "its usage says 5 new tokens where 4 were heard"),
        (changed(ended_s=1.5), Kind.BOOKKEEPING, "4 pieces after its end"),
        (changed(outcome="refused", status=429), Kind.BOOKKEEPING, "it is refused and answered"),
        (
            changed(outcome="failed", status=500, pieces=(), error="the target raised"),
            Kind.CRASHED,
            "the server failed: the target raised",
        ),
        (changed(outcome="failed", error="the target raised"), Kind.CRASHED, "the server failed: the target raised"),
        (changed(pieces=(A, B, D, C)), None, ""),
        (changed(pieces=(A, Piece(at_s=2.0, text="x", tokens=(98,)), C, D)), Kind.BOOKKEEPING, "with piece 1"),
        (changed(pieces=(A, B, C, Piece(at_s=2.0, tokens=(100,)))), Kind.BOOKKEEPING, "its text ends with 'abc'"),
        (
            changed(pieces=(A, B, Piece(at_s=2.0, text="c"), Piece(at_s=2.0, text="d", tokens=(99, 100)))),
            Kind.BOOKKEEPING,
            "with",
        ),
        (asking(sampling=Sampling(logprobs=1)), Kind.BOOKKEEPING, "0 log-probabilities with 4 tokens"),
    ],
)
def test_each_thing_that_is_wrong_is_said(exchange: Exchange, kind: Kind | None, what: str) -> None:
    found = told(exchange)
    if kind is None:
        assert found == [], "in another order text and ids still agree: only a reference can tell"
    else:
        assert found[0][0] is kind
        assert found[0][1].startswith(what)
