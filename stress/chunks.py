"""Chunks: what an endpoint says, read as the few fields of either route that matter here; all others are passed over."""

from __future__ import annotations

from typing import Any

import msgspec

from stress.transcript import Piece, Usage


class Delta(msgspec.Struct, frozen=True):
    """The text of a chat answer, or of a piece of it."""

    content: str | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token of a chat answer."""

    logprob: float | None = None


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of either route."""

    token_logprobs: list[float | None] | None = None
    content: list[TokenLogprob] | None = None


class Whereabouts(msgspec.Struct, frozen=True):
    """What slotfuzz's own endpoint tells of a choice."""

    submission: int | None = None
    slots: tuple[int, ...] = ()
    cached: int | None = None


class Choice(msgspec.Struct, frozen=True):
    """A choice, or a piece of it."""

    text: str = ""
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    slotfuzz: Whereabouts | None = None


class Counted(msgspec.Struct, frozen=True):
    """How many tokens there were."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """A whole body, or the data of one event of a stream."""

    choices: list[Choice] = []
    usage: Counted | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Reads a body or an event; raises msgspec.DecodeError where it is none."""
    return _DECODER.decode(data)


def piece_of(choice: Choice, at_s: float) -> Piece | None:
    """What a choice adds to the answer; None where that is nothing."""
    said = choice.delta or choice.message
    text = choice.text if said is None else said.content or ""
    logprobs: tuple[float | None, ...] = ()
    if choice.logprobs is not None:
        logprobs = tuple(choice.logprobs.token_logprobs or (each.logprob for each in choice.logprobs.content or ()))
    tokens = tuple(choice.token_ids or ())
    return Piece(at_s=at_s, text=text, tokens=tokens, logprobs=logprobs) if text or tokens or logprobs else None


def usage_of(counted: Counted) -> Usage:
    """As a transcript has it."""
    return Usage(counted.prompt_tokens, counted.completion_tokens)


def error_of(data: bytes) -> str:
    """An endpoint's own words for what went wrong, shortened."""
    try:
        error = msgspec.json.decode(data)
    except msgspec.DecodeError:
        error = data.decode(errors="replace")
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and name in error:
            error = error[name]
    words = error if isinstance(error, str) else msgspec.json.encode(error).decode()
    return " ".join(words.split())[:500]
