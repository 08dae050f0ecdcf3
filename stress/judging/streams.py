"""Streams: what is wrong with a response by itself, whatever the model says: pieces, counts, reasons, bounds.

A token that a stop, a limit or a list of allowed ids forbids; a text that its ids do not spell; a count that is not what was
heard; an end for the wrong reason, or without one; something heard after the client had gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from oracle.sampling import is_stopped
from stress.endpoint.tokens import Tokenizer
from stress.judging.opinion import Complaint
from stress.transcript import Exchange
from targets.protocol import Kind

SERVER_FAILED = (200, 500)
"""The status with which an endpoint owns that it broke, which it may do in mid-stream as well. Others say that it has no
time, or no room."""
NO_FAILURE = ("deadline", "shutting down", "has stopped")
"""Words with which it says the same in mid-stream."""


def complaints(exchange: Exchange, tokenizer: Tokenizer | None, context_tokens_max: int | None) -> Iterator[Complaint]:
    """Everything amiss, the most telling first.

    Args:
        tokenizer: The endpoint's, to hold text against ids; None where nobody knows it.
        context_tokens_max: The most tokens of prompt and answer together; None where nobody knows.
    """
    given_up = any(words in exchange.error for words in NO_FAILURE)
    if exchange.outcome == "failed" and exchange.status in SERVER_FAILED and not given_up:
        yield Complaint(kind=Kind.CRASHED, what=f"the server failed: {exchange.error or 'it does not say why'}")
    yield from _bounds(exchange)
    yield from _order(exchange)
    if exchange.outcome == "answered":
        yield from _end(exchange, context_tokens_max)
        yield from _usage(exchange)
    if tokenizer is not None and exchange.tokens:
        yield from _text(exchange, tokenizer)
    yield from _logprobs(exchange)


def _bounds(exchange: Exchange) -> Iterator[Complaint]:
    """Tokens that the request itself rules out."""
    request, tokens = exchange.request, exchange.tokens
    asked = request.sampling
    for position, token in enumerate(tokens):
        if position >= request.max_new_tokens:
            what = f"token {position + 1} of {request.max_new_tokens}"
            yield Complaint(kind=Kind.BOOKKEEPING, what=what, position=position, actual=token)
            return
        if is_stopped(request, tokens[:position]):
            what = f"it goes on after its stop, which ends with {tokens[position - 1]}"
            yield Complaint(kind=Kind.BOOKKEEPING, what=what, position=position, actual=token)
            return
        if asked.allowed and token not in asked.allowed:
            what = f"token {token}, which is not among its allowed ids"
            yield Complaint(kind=Kind.ECHO, what=what, position=position, actual=token)
            return
        if position < asked.min_new_tokens and token in request.stop:
            what = f"a stop id, before {asked.min_new_tokens} tokens stand"
            yield Complaint(kind=Kind.ECHO, what=what, position=position, actual=token)
            return


def _order(exchange: Exchange) -> Iterator[Complaint]:
    """Pieces where none may be."""
    if exchange.pieces and exchange.outcome == "refused":
        yield Complaint(kind=Kind.BOOKKEEPING, what="it is refused and answered")
    late = [piece for piece in exchange.pieces if piece.at_s > exchange.ended_s]
    if late:
        yield Complaint(kind=Kind.BOOKKEEPING, what=f"{len(late)} pieces after its end")


def _end(exchange: Exchange, context_tokens_max: int | None) -> Iterator[Complaint]:
    """The reason for which it ended, where its ids or its usage tell how long it is."""
    request, tokens = exchange.request, exchange.tokens
    if exchange.finish_reason is None:
        yield Complaint(kind=Kind.BOOKKEEPING, what="it ends without a reason")
        return
    if not tokens and (exchange.text or request.max_new_tokens == 0):
        return  # its ids are not told
    stopped = is_stopped(request, tokens)
    room = len(tokens) >= request.max_new_tokens
    if context_tokens_max is not None:
        room |= len(request.prompt) + len(tokens) >= context_tokens_max
    if exchange.finish_reason not in ("stop", "length"):
        yield Complaint(kind=Kind.BOOKKEEPING, what=f"it ends with the reason {exchange.finish_reason!r}")
    elif exchange.finish_reason == "stop" and not stopped:
        what = f"it ends with the reason 'stop' after {len(tokens)} tokens, none of which is its stop"
        yield Complaint(kind=Kind.BOOKKEEPING, what=what)
    elif exchange.finish_reason == "length" and (stopped or not room):
        what = f"it ends with the reason 'length' after {len(tokens)} of {request.max_new_tokens} tokens"
        yield Complaint(kind=Kind.BOOKKEEPING, what=what + (", with its stop" if stopped else ""))


def _usage(exchange: Exchange) -> Iterator[Complaint]:
    """Counts against what was asked and heard. How many tokens a text has is not known here."""
    usage = exchange.usage
    if usage is None:
        return
    if exchange.prompt_text is None and usage.prompt != len(exchange.request.prompt):
        what = f"its usage says {usage.prompt} prompt tokens of {len(exchange.request.prompt)}"
        yield Complaint(kind=Kind.BOOKKEEPING, what=what)
    if exchange.tokens and usage.completion != len(exchange.tokens):
        what = f"its usage says {usage.completion} new tokens where {len(exchange.tokens)} were heard"
        yield Complaint(kind=Kind.BOOKKEEPING, what=what)


def _text(exchange: Exchange, tokenizer: Tokenizer) -> Iterator[Complaint]:
    """The text against what the ids spell: no piece may be ahead of its ids, and the whole is the whole.

    A token that ends the answer is no part of its text; nor is the end of a sequence that does, which may be told as text.
    """
    ends = frozenset(exchange.request.stop)
    writer = tokenizer.writer()
    spelt, said = "", ""
    for number, piece in enumerate(exchange.pieces):
        spelt += "".join(writer.push(token) for token in piece.tokens if token not in ends)
        said += piece.text
        if number == len(exchange.pieces) - 1:
            spelt += writer.flush()  # it may have been the end, also for a client that hung up
        if not spelt.startswith(said):
            what = f"with piece {number} its text is {_tail(said)} where its ids spell {_tail(spelt)}"
            yield Complaint(kind=Kind.BOOKKEEPING, what=what)
            return
    if exchange.outcome == "answered" and said != spelt and not exchange.request.stop_sequences:
        what = f"its text ends with {_tail(said)} where its ids spell {_tail(spelt)}"
        yield Complaint(kind=Kind.BOOKKEEPING, what=what)


def _tail(text: str) -> str:
    return repr(text[-24:])


def _logprobs(exchange: Exchange) -> Iterator[Complaint]:
    """As many log-probabilities as were asked for; a token that ends the answer may be told without one."""
    told = sum(len(piece.logprobs) for piece in exchange.pieces)
    tokens = len(exchange.tokens)
    if not exchange.request.sampling.logprobs or exchange.outcome != "answered" or not tokens:
        return
    if not tokens - is_stopped(exchange.request, exchange.tokens) <= told <= tokens:
        yield Complaint(kind=Kind.BOOKKEEPING, what=f"{told} log-probabilities with {tokens} tokens")
