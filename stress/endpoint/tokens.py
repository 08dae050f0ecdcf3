"""Tokens: from text to token ids and back, for whatever model is served.

A model with a tokenizer of its own is read and written with that. The random ones, and targets of a user's own, have none:
there the first 256 ids that have no meaning of their own are the bytes, and every other id reads `<|id|>`.

Answers are written piece by piece, each request with a writer of its own. A character whose bytes come in several tokens is
told when it is whole; the pieces together are the text of the whole answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from targets.models import find_tokenizer
from targets.protocol import BadInput, Factory
from targets.tiny import LARGER, TINY

PENDING_TOKENS_MAX = 8
"""No character has more tokens: what is not whole by then never will be."""


class Message(NamedTuple):
    """One message of a chat."""

    role: str
    content: str


class Writer(Protocol):
    """Writes one answer."""

    def push(self, token: int) -> str:
        """The text that is whole now that `token` has come; often none."""

    def flush(self) -> str:
        """What is left, whole or not."""


class Tokenizer(Protocol):
    """Reads prompts and writes answers.

    Attributes:
        ends: Ids that end an answer.
    """

    ends: tuple[int, ...]

    def read(self, text: str) -> list[int]:
        """The ids of a text; raises BadInput where it has none."""

    def read_chat(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation, up to where the assistant speaks; raises BadInput."""

    def writer(self) -> Writer:
        """A writer for one answer."""

    def spelling(self, token: int) -> bytes:
        """A token alone."""


def tokenizer_of(factory: Factory, model: str) -> Tokenizer:
    """The tokenizer of what a factory serves; `model` is what it was built from, empty for a target of the user's own.

    Raises:
        BadInput: where a model's own tokenizer can't be loaded.
    """
    own = find_tokenizer(model) if model else None
    if own is not None:
        return OwnTokenizer(own)
    known = {**TINY, **LARGER}
    ends = (known[model]().eos_token_id,) if model in known else ()
    return ByteTokenizer(factory.vocabulary, factory.special_ids, ends)


class ByteTokenizer:
    """Bytes, one a token. A conversation is a line a message, `role: content`, and `assistant:` at its end."""

    def __init__(self, vocabulary: int, special_ids: Sequence[int], ends: tuple[int, ...]) -> None:
        self.ends = ends
        self.ids = [token for token in range(vocabulary) if token not in special_ids][:256]
        self.bytes = {token: bytes([value]) for value, token in enumerate(self.ids)}

    def read(self, text: str) -> list[int]:
        """One id a byte."""
        found = text.encode()
        if found and max(found) >= len(self.ids):
            rule = f"token ids, or text of bytes below {len(self.ids)}: it knows no more"
            raise BadInput("prompt", rule, f"byte {max(found)}")
        return [self.ids[value] for value in found]

    def read_chat(self, messages: Sequence[Message]) -> list[int]:
        """One id a byte of the plain template."""
        return self.read("".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant:")

    def writer(self) -> Writer:
        """A writer of UTF-8."""
        return ByteWriter(self.bytes)

    def spelling(self, token: int) -> bytes:
        """A byte, or the id in brackets."""
        return self.bytes.get(token) or f"<|{token}|>".encode()


class ByteWriter:
    """Writes UTF-8; what is none becomes U+FFFD, as if the whole answer were decoded at once."""

    def __init__(self, spelling: dict[int, bytes]) -> None:
        self.spelling = spelling
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that end with this byte; an id that is no byte ends what is pending, whole or not."""
        byte = self.spelling.get(token)
        return self.flush() + f"<|{token}|>" if byte is None else self.decoder.decode(byte)

    def flush(self) -> str:
        """The bytes of a character that never came to its end."""
        text = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return text


class OwnTokenizer:
    """A model's own tokenizer, from transformers. Special tokens are written out like all others."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ends: tuple[int, ...] = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)

    def read(self, text: str) -> list[int]:
        """With what the tokenizer puts before a text."""
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def read_chat(self, messages: Sequence[Message]) -> list[int]:
        """By the tokenizer's own template."""
        if not self.tokenizer.chat_template:
            raise BadInput("model", "one whose tokenizer has a chat template", "one that has none")
        turns = [message._asdict() for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template may raise anything, and does so to refuse an order of roles
            rule = "a conversation that the model's template takes"
            raise BadInput("messages", rule, "another one", " ".join(str(error).split())) from error
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def writer(self) -> Writer:
        """A writer that decodes what is pending, behind what came before it."""
        return OwnWriter(self.tokenizer)

    def spelling(self, token: int) -> bytes:
        """A token decoded alone, or as the tokenizer writes it where that is no text."""
        text: str = self.tokenizer.decode([token])
        return (self.tokenizer.convert_ids_to_tokens(token) if "\ufffd" in text else text).encode()


class OwnWriter:
    """Writes with a model's own tokenizer, for which a token's text may depend on what stands before it.

    The last piece that was told is decoded with what is pending behind it, and taken off again: then a space between words
    is there or not as it would be in the whole text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.told: list[int] = []
        self.pending: list[int] = []

    def push(self, token: int) -> str:
        """What is pending, unless it ends within a character."""
        self.pending.append(token)
        text = self._text()
        if not text or (text.endswith("\ufffd") and len(self.pending) < PENDING_TOKENS_MAX):
            return ""
        self.told, self.pending = self.pending, []
        return text

    def flush(self) -> str:
        """What is pending."""
        text = self._text()
        self.told, self.pending = self.pending, []
        return text

    def _text(self) -> str:
        before: str = self.tokenizer.decode(self.told)
        both: str = self.tokenizer.decode(self.told + self.pending)
        return both[len(before) :]
