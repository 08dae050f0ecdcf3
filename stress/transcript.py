"""Transcripts: what clients asked and heard, one line of JSON a request, in files of one run's folder.

It is all that passes between those who load an endpoint and those who judge its answers. Who loads writes
`transcripts/<process>.jsonl` and never waits for a judge; who judges reads those files while they grow, or afterwards, in
another process. Times are seconds of one clock of the machine (`time.monotonic`): those of several processes compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from targets.protocol.schedule import Request, TokenId

Outcome = Literal["answered", "cancelled", "refused", "failed", "cut", "unreached"]


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a stream, in the order in which it was heard; a whole answer is one piece.

    Attributes:
        at_s: When it was heard.
        text: What it adds to the answer's text.
        tokens: The ids it adds, where the endpoint tells ids.
        logprobs: The log-probability of each of these ids, where it tells them; None where that is no number.
    """

    at_s: float
    text: str = ""
    tokens: tuple[TokenId, ...] = ()
    logprobs: tuple[float | None, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the endpoint counts them."""

    prompt: int
    completion: int


class Question(NamedTuple):
    """What was asked, in the words in which it can be asked again.

    Attributes:
        text: Stands for the prompt's ids, where there is one.
        chat: Whether the text is the only message of a chat.
    """

    request: Request
    text: str | None = None
    chat: bool = False


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and everything that was heard of it.

    Attributes:
        number: Of the request among those of its process, in the order in which they were sent.
        user: The class of the user who asked.
        request: What was asked; its `continues` is resolved, so that `prompt` is whole.
        sent_s: When it was sent.
        ended_s: When nothing more was to be heard.
        outcome: `answered` in full; `cancelled` by the client, who hung up; `refused` with a status of 4xx or 503; `failed`
            with another status or an error in the stream; `cut`, where a stream ended without saying so; `unreached`, where
            there was no connection to send it by.
        status: Of HTTP; 0 where none was heard.
        pieces: What was heard, in order.
        finish_reason: As the endpoint says it.
        usage: As the endpoint says it.
        submission: Which submission of the target it was, where the endpoint says so.
        slots: In which slots it ran, where the endpoint says so.
        cached: How many of its tokens were cached, where the endpoint says so.
        error: The endpoint's own words.
        streamed: Whether the answer was asked for in pieces.
        prompt_text: What was sent in place of ids. Then `request.prompt` has its bytes, which are the ids where the model
            has no tokenizer of its own and there is no template.
        chat: Whether that was the only message of a chat.
    """

    number: int
    user: str
    request: Request
    sent_s: float
    ended_s: float
    outcome: Outcome
    status: int = 0
    pieces: tuple[Piece, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    submission: int | None = None
    slots: tuple[int, ...] = ()
    cached: int | None = None
    error: str = ""
    streamed: bool = True
    prompt_text: str | None = None
    chat: bool = False

    @property
    def question(self) -> Question:
        """What was asked."""
        return Question(self.request, self.prompt_text, self.chat)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the answer, as far as it was heard."""
        return tuple(token for piece in self.pieces for token in piece.tokens)

    @property
    def text(self) -> str:
        """The text of the answer, as far as it was heard."""
        return "".join(piece.text for piece in self.pieces)


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """Written when a request is sent, so that one of which nothing was heard before everything ended is not lost."""

    number: int
    user: str
    request: Request
    sent_s: float


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag="heard"):
    """Written when nothing more is to be heard of a request."""

    exchange: Exchange


Line = Begun | Heard
_DECODER = msgspec.json.Decoder(Line)


def format_line(line: Line) -> bytes:
    """A line of a transcript, with its end."""
    return msgspec.json.encode(line) + b"\n"


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, Line]]:
    """Yields (offset behind it, line) from `offset` on; a last line that is not whole yet is left for the next time.

    Raises:
        msgspec.DecodeError: A whole line is none of these.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            yield offset, _DECODER.decode(raw)
