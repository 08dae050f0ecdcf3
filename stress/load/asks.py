"""Asks: what a user sends next, whether it waits for an answer, and when it hangs up."""

from __future__ import annotations

import msgspec

from targets.protocol.schedule import Request


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and what its client does.

    Attributes:
        request: What is asked.
        turn: Its place in its story: others may name it.
        before: The turn whose prompt and answer come before its own prompt.
        hang_up_tokens: It hangs up when it has heard so many pieces.
        hang_up_s: It hangs up after so many seconds, whatever it has heard.
        streamed: Whether the answer is wanted in pieces.
        at_s: Seconds after the start at which it is sent, where that was recorded.
        text: The prompt, where a recording has text and no ids.
    """

    request: Request
    turn: int = 0
    before: int | None = None
    hang_up_tokens: int | None = None
    hang_up_s: float | None = None
    streamed: bool = True
    at_s: float | None = None
    text: str | None = None
