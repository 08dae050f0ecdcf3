"""Prompts: the token ids of what was sent as text, by the endpoint's own tokenizer."""

from __future__ import annotations

import msgspec

from stress.endpoint.tokens import Message, Tokenizer
from stress.transcript import Exchange
from targets.protocol import BadInput


def in_ids(exchange: Exchange, tokenizer: Tokenizer | None) -> Exchange | None:
    """The response with its prompt in ids; None where nobody can read it, or the endpoint counted other ones."""
    text = exchange.prompt_text
    if text is None:
        return exchange
    if tokenizer is None:
        return None
    try:
        ids = tokenizer.read_chat([Message("user", text)]) if exchange.chat else tokenizer.read(text)
    except BadInput:
        return None
    if exchange.usage is not None and exchange.usage.prompt != len(ids):
        return None
    return msgspec.structs.replace(exchange, request=msgspec.structs.replace(exchange.request, prompt=tuple(ids)))
