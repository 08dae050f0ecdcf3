"""Hearing: everything that is heard of one request, until it is written down."""

from __future__ import annotations

import time

import msgspec

from stress.chunks import Chunk, piece_of, usage_of
from stress.load.asks import Ask
from stress.load.wording import spelled
from stress.transcript import Exchange, Outcome, Piece, Usage
from targets.protocol.schedule import Request


def going_on(before: Hearing, ask: Ask, context: int) -> Ask | None:
    """An ask with prompt and answer of the turn before it; None where that was not heard whole, or it grows too long."""
    if before.outcome != "answered" or not before.pieces:
        return None
    if before.text is not None:
        text = before.text + "".join(piece.text for piece in before.pieces) + spelled(ask.request)[1]
        whole = msgspec.structs.replace(ask, text=text)
        length = len(text.encode())
    elif before.pieces[-1].tokens:
        said = tuple(token for piece in before.pieces for token in piece.tokens)
        prompt = before.request.prompt + said + ask.request.prompt
        whole = msgspec.structs.replace(ask, request=msgspec.structs.replace(ask.request, prompt=prompt))
        length = len(prompt)
    else:
        return None
    return whole if length + ask.request.max_new_tokens <= context else None


class Hearing:
    """One request, from when it is sent.

    Attributes:
        request: What is asked, whole.
        text, chat: What is sent in place of the prompt's ids, and whether that is a chat.
        outcome: None while more may be heard.
    """

    def __init__(
        self, number: int, user: str, ask: Ask, request: Request, text: str | None = None, chat: bool = False
    ) -> None:
        self.number = number
        self.user = user
        self.ask = ask
        self.request = request
        self.text = text
        self.chat = chat
        self.sent_s = time.monotonic()
        self.ended_s = self.sent_s
        self.status = 0
        self.pieces: list[Piece] = []
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.submission: int | None = None
        self.slots: tuple[int, ...] = ()
        self.cached: int | None = None
        self.error = ""
        self.outcome: Outcome | None = None

    def take(self, chunk: Chunk) -> None:
        """Notes what an event, or a whole body, says."""
        now = time.monotonic()
        for choice in chunk.choices:
            piece = piece_of(choice, now)
            if piece is not None:
                self.pieces.append(piece)
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.slotfuzz is not None:
                self.submission, self.cached = choice.slotfuzz.submission, choice.slotfuzz.cached
                self.slots = choice.slotfuzz.slots
        if chunk.usage is not None:
            self.usage = usage_of(chunk.usage)

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Nothing more is to be heard; only the first end counts."""
        if self.outcome is None:
            self.outcome, self.error, self.ended_s = outcome, error, time.monotonic()

    @property
    def satisfied(self) -> bool:
        """Whether its client wants to hear no more."""
        limit = self.ask.hang_up_tokens
        return limit is not None and len(self.pieces) >= limit

    @property
    def lost(self) -> bool:
        """Whether it was sent and never heard to its end, nor given up by its client, nor refused."""
        return self.outcome == "cut"

    def exchange(self) -> Exchange:
        """For the transcript."""
        assert self.outcome is not None, "it has ended"
        return Exchange(
            number=self.number,
            user=self.user,
            request=self.request,
            sent_s=self.sent_s,
            ended_s=self.ended_s,
            outcome=self.outcome,
            status=self.status,
            pieces=tuple(self.pieces),
            finish_reason=self.finish_reason,
            usage=self.usage,
            submission=self.submission,
            slots=self.slots,
            cached=self.cached,
            error=self.error,
            streamed=self.ask.streamed,
            prompt_text=self.text,
            chat=self.chat,
        )
