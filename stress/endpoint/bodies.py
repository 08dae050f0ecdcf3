"""Bodies: what clients send, every field with its bounds.

The names are those of OpenAI's API; those that are not are vLLM's (`ignore_eos`, `min_tokens`, `repetition_penalty`,
`stop_token_ids`, `allowed_token_ids`, `return_token_ids`) or our own nouns (`salt`, `deadline_s`).

A field that is not here is refused, not ignored: who asks for it would not get what they asked for.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TEXT_MAX = 1_000_000
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Name = Annotated[str, Meta(max_length=256)]
Stop = Annotated[str, Meta(min_length=1, max_length=256)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]
Ids = Annotated[list[TokenId], Meta(max_length=4096)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
PromptIds = Annotated[list[TokenId], Meta(max_length=TEXT_MAX)]
Prompts = Annotated[list[Text | TokenId | PromptIds], Meta(min_length=1, max_length=TEXT_MAX)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer is streamed.

    Attributes:
        include_usage: A last chunk says how many tokens there were.
    """

    include_usage: bool = False


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both routes take. None stands for the default everywhere, as in OpenAI's API.

    Attributes:
        temperature: Greedy where it is left out, unlike OpenAI's: here an answer is to be compared with another.
        top_p: Only 1: no token is ever cut off.
        seed: Taken modulo 1,000,000; one is drawn where it is left out, and told with the answer. The i-th answer to a
            prompt has `seed + i`.
        user: Ignored.
        salt: Requests share cached state only with those of equal salt.
        deadline_s: Seconds after which the request is given up, if the server's own deadline is not sooner.
        return_token_ids: The ids of the answer are told beside its text.
    """

    model: Name | None = None
    n: Annotated[int, Meta(ge=1, le=64)] | None = None
    max_tokens: Tokens | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=1, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    user: Name | None = None
    ignore_eos: bool = False
    min_tokens: Tokens = 0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    stop_token_ids: Ids = []
    allowed_token_ids: Ids = []
    return_token_ids: bool = False
    salt: Tokens | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class CompletionBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `/v1/completions`.

    Attributes:
        prompt: A text, token ids, or several of either.
        logprobs: So many of the likeliest tokens are told with each, and the token itself.
    """

    prompt: Text | Prompts
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=64)] | None = None
    echo: bool | None = None
    suffix: None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Meta(max_length=1024)]
    name: Name | None = None


class ChatBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `/v1/chat/completions`.

    Attributes:
        max_completion_tokens: What `max_tokens` is called now.
        logprobs: Whether the log-probability of each token is told.
        top_logprobs: So many of the likeliest beside it.
    """

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=1024)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
