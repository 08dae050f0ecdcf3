"""Prompts: the token ids of what was sent as text, by the endpoint's own tokenizer.

A transcript does not say whether a text was a prompt or the only message of a chat. The endpoint's count of prompt tokens
tells the two apart, where it was heard; where it was not, as of a client that hung up, both are readings.
"""

from __future__ import annotations

import msgspec

from stress.endpoint.tokens import Message, Tokenizer
from stress.transcript import Exchange
from targets.protocol import BadInput


def readings(exchange: Exchange, tokenizer: Tokenizer | None) -> tuple[Exchange, ...]:
    """The response with its prompt in ids, once for each way to read it; none where nobody can read it."""
    text = exchange.prompt_text
    if text is None:
        return (exchange,)
    if tokenizer is None:
        return ()
    read = [ids for ids in (_read(tokenizer, text), _read_chat(tokenizer, text)) if ids is not None]
    return tuple(
        msgspec.structs.replace(exchange, request=msgspec.structs.replace(exchange.request, prompt=ids))
        for ids in read
        if exchange.usage is None or exchange.usage.prompt == len(ids)
    )


def _read(tokenizer: Tokenizer, text: str) -> tuple[int, ...] | None:
    try:
        return tuple(tokenizer.read(text))
    except BadInput:
        return None


def _read_chat(tokenizer: Tokenizer, text: str) -> tuple[int, ...] | None:
    try:
        return tuple(tokenizer.read_chat([Message("user", text)]))
    except BadInput:
        return None
