"""Replies: answers as JSON, in the two forms of OpenAI's API, each whole and in chunks.

Beside what the API has, every whole choice and the last chunk of each say under `slotfuzz` which submission of the target it
was, in which slots it ran, how many of its tokens were cached, and its seed: what it takes to look it up in the target's own
account, and to ask for it again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from stress.endpoint.answers import Delta, Told
from stress.endpoint.orders import Ticket
from stress.endpoint.tokens import Tokenizer


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a reply: of each prompt once, and of all answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Whereabouts(msgspec.Struct, frozen=True):
    """What the target knows a choice by."""

    submission: int
    slots: list[int]
    cached: int
    seed: int


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a completion, token by token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET
    slotfuzz: Whereabouts | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a chat answer, token by token."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    """What the assistant says."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One whole chat answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET
    slotfuzz: Whereabouts | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What the assistant says next; its role stands in the first piece only."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET


class ChatPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a chat answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET
    slotfuzz: Whereabouts | UnsetType = UNSET


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A body, or the data of one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[Any]
    usage: Usage | UnsetType | None = UNSET


class Form(Protocol):
    """One of the two forms."""

    prefix: str
    whole_object: str
    chunk_object: str

    def whole(self, index: int, delta: Delta, logprobs: bool, extra: dict[str, Any]) -> Any:
        """A whole choice."""

    def opening(self, index: int) -> Any | None:
        """What a choice begins with in a stream, before any token."""

    def piece(self, index: int, delta: Delta, logprobs: bool, extra: dict[str, Any]) -> Any:
        """A piece of a choice."""


class Completions:
    """The form of `/v1/completions`."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def whole(self, index: int, delta: Delta, logprobs: bool, extra: dict[str, Any]) -> Any:
        """As a piece that has everything."""
        return self.piece(index, delta, logprobs, extra)

    def opening(self, index: int) -> Any | None:
        """Nothing."""
        return None

    def piece(self, index: int, delta: Delta, logprobs: bool, extra: dict[str, Any]) -> Any:
        """A piece of a completion."""
        told = self.logprobs(delta.logprobs) if logprobs else None
        return CompletionChoice(index=index, text=delta.text, logprobs=told, finish_reason=delta.finish, **extra)

    def logprobs(self, tokens: list[Told]) -> CompletionLogprobs:
        """Log-probabilities, list by list."""
        return CompletionLogprobs(
            tokens=[self.name(told.token) for told in tokens],
            token_logprobs=[told.logprob for told in tokens],
            top_logprobs=[{self.name(token): logprob for token, logprob in told.likeliest} for told in tokens],
            text_offset=[told.begins for told in tokens],
        )

    def name(self, token: int) -> str:
        """A token alone; bytes that are no text are escaped, as OpenAI does."""
        return _name(self.tokenizer.spelling(token))


class Chats:
    """The form of `/v1/chat/completions`."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def whole(self, index: int, delta: Delta, logprobs: bool, extra: dict[str, Any]) -> Any:
        """A whole answer."""
        told = self.logprobs(delta.logprobs) if logprobs else None
        message = AnswerMessage(delta.text)
        return ChatChoice(index=index, message=message, logprobs=told, finish_reason=delta.finish, **extra)

    def opening(self, index: int) -> Any | None:
        """Who speaks."""
        return ChatPiece(index=index, delta=ChatDelta("", "assistant"), logprobs=None, finish_reason=None)

    def piece(self, index: int, delta: Delta, logprobs: bool, extra: dict[str, Any]) -> Any:
        """A piece of an answer."""
        told = self.logprobs(delta.logprobs) if logprobs and delta.logprobs else None
        said = ChatDelta(delta.text or UNSET)
        return ChatPiece(index=index, delta=said, logprobs=told, finish_reason=delta.finish, **extra)

    def logprobs(self, tokens: list[Told]) -> ChatLogprobs:
        """Log-probabilities, token by token."""
        return ChatLogprobs(
            [
                TokenLogprob(
                    **self.named(told.token),
                    logprob=told.logprob,
                    top_logprobs=[TopLogprob(**self.named(token), logprob=logprob) for token, logprob in told.likeliest],
                )
                for told in tokens
            ]
        )

    def named(self, token: int) -> dict[str, Any]:
        """A token alone, as text and as bytes."""
        spelling = self.tokenizer.spelling(token)
        return {"token": _name(spelling), "bytes": list(spelling)}


class Letter:
    """Writes the bodies of one reply, which all begin alike."""

    def __init__(self, form: Form, name: str, model: str, fingerprint: str) -> None:
        self.form = form
        self._head: dict[str, Any] = {
            "id": f"{form.prefix}-{name}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def whole(self, choices: Sequence[Any], usage: Usage) -> bytes:
        """A whole body."""
        return msgspec.json.encode(Reply(object=self.form.whole_object, choices=choices, usage=usage, **self._head))

    def event(self, choice: Any) -> bytes:
        """An event of a stream."""
        return self._event([choice], UNSET)

    def last(self, usage: Usage) -> bytes:
        """The event that tells how many tokens there were."""
        return self._event([], usage)

    def _event(self, choices: Sequence[Any], usage: Usage | UnsetType) -> bytes:
        reply = Reply(object=self.form.chunk_object, choices=choices, usage=usage, **self._head)
        return b"data: " + msgspec.json.encode(reply) + b"\n\n"


def whereabouts(ticket: Ticket) -> Whereabouts:
    """What the target knows a request by."""
    return Whereabouts(ticket.submission, ticket.slots, ticket.cached, ticket.request.sampling.seed)


def _name(spelling: bytes) -> str:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
