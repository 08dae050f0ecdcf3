"""Wording: a request as the body of one of OpenAI's two routes, in the dialect that the endpoint understands.

Who loads an endpoint and who asks it once more to judge an answer must ask for the same: both take their words from here.
Fields that OpenAI's API does not have are sent only in the dialects that have them, and only where a request needs them.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from targets.protocol.schedule import GREEDY, Request

Dialect = Literal["slotfuzz", "vllm", "openai"]
"""Which fields an endpoint knows: all of ours, those of them that are vLLM's, or OpenAI's only."""
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
LOGPROBS_MAX = 5
"""A completion is told of so many tokens at most."""


def body_of(
    request: Request,
    model: str,
    dialect: Dialect = "slotfuzz",
    *,
    streamed: bool = True,
    chat: bool = False,
    text: str | None = None,
) -> dict[str, Any]:
    """The body that asks for what a request asks for, as far as the endpoint knows the fields.

    Args:
        text: Stands for the prompt's ids where there is one; a chat is text.
    """
    asked = request.sampling
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_new_tokens, "temperature": asked.temperature}
    if chat:
        assert text is not None, "a chat is text"
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = list(request.prompt) if text is None else text
    if asked.temperature:
        body["seed"] = asked.seed
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if asked.logprobs:
        told = {"logprobs": True, "top_logprobs": asked.logprobs}
        body |= told if chat else {"logprobs": min(asked.logprobs, LOGPROBS_MAX)}
    if asked.bias:
        body["logit_bias"] = {str(token): added for token, added in asked.bias}
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(asked, name):
            body[name] = getattr(asked, name)
    return body if dialect == "openai" else body | _more(request, dialect)


def _more(request: Request, dialect: Dialect) -> dict[str, Any]:
    """What vLLM's API has beside OpenAI's. An answer ends with the stop ids of its request and no other."""
    asked = request.sampling
    more: dict[str, Any] = {
        "repetition_penalty": asked.repetition_penalty if asked.repetition_penalty != GREEDY.repetition_penalty else None,
        "min_tokens": asked.min_new_tokens,
        "stop_token_ids": list(request.stop),
        "allowed_token_ids": list(asked.allowed),
        "return_token_ids": True,
        "ignore_eos": True,
    }
    needed = {name: value for name, value in more.items() if value}
    return needed | ({"salt": request.salt} if dialect == "slotfuzz" and request.salt is not None else {})
