"""Wording: a request as the body of one of OpenAI's two routes, in the dialect that the endpoint understands."""

from __future__ import annotations

from typing import Any

import msgspec

from stress.load.plan import Plan
from targets.protocol.schedule import GREEDY, Request

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
FIRST_CHARACTER, CHARACTERS = 32, 95
"""Printable ASCII: as text, an id is one of these."""


def spelled(request: Request) -> tuple[Request, str]:
    """A request whose prompt is text, and the text; the ids of the prompt are then the text's bytes."""
    text = "".join(chr(FIRST_CHARACTER + token % CHARACTERS) for token in request.prompt)
    return msgspec.structs.replace(request, prompt=tuple(text.encode())), text


def body_of(request: Request, plan: Plan, model: str, streamed: bool, text: str | None) -> bytes:
    """The body, as JSON. `text` stands for the prompt's ids where there is one."""
    sampling = request.sampling
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_new_tokens}
    if plan.route == "chat":
        assert text is not None, "a chat is text"
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = list(request.prompt) if text is None else text
    body["temperature"] = sampling.temperature
    if sampling.temperature:
        body["seed"] = sampling.seed
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):
            body[name] = getattr(sampling, name)
    if sampling.bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.bias}
    if sampling.logprobs:
        chat = {"logprobs": True, "top_logprobs": sampling.logprobs}
        body |= chat if plan.route == "chat" else {"logprobs": sampling.logprobs}
    if plan.dialect != "openai":
        body |= _more(request, plan)
    return msgspec.json.encode(body)


def _more(request: Request, plan: Plan) -> dict[str, Any]:
    """What vLLM's API has beside OpenAI's. An answer ends with the stop ids of its request and no other."""
    sampling = request.sampling
    more: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
    if request.stop:
        more["stop_token_ids"] = list(request.stop)
    if sampling.allowed:
        more["allowed_token_ids"] = list(sampling.allowed)
    if sampling.min_new_tokens:
        more["min_tokens"] = sampling.min_new_tokens
    if sampling.repetition_penalty != GREEDY.repetition_penalty:
        more["repetition_penalty"] = sampling.repetition_penalty
    if request.salt is not None and plan.dialect == "slotfuzz":
        more["salt"] = request.salt
    return more
