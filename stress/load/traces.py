"""Traces: recorded load. JSON lines with an arrival a request, or a file of conversations as ShareGPT has them.

A line has `prompt` (token ids, or text) or `prompt_tokens` (how many: the ids are then drawn by the seed), `new_tokens`, and
perhaps `arrival_s`, seconds from any common beginning. Where arrivals are recorded they are kept, whether earlier requests
were answered or not; where none are, users ask one after another. Of a conversation each turn of the human is asked with all
that was said before it, as text, and may be answered with as many tokens as the recorded answer has words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fuzz.strategies.requests import Space
from stress.load.asks import Ask
from stress.load.plan import Plan
from targets.protocol.errors import BadInput
from targets.protocol.schedule import Request, TokenId

TRACE_BYTES_MAX = 2_000_000_000
HUMANS = ("human", "user")


class Recorded(msgspec.Struct, frozen=True):
    """A line of a trace; other fields are passed over."""

    new_tokens: Annotated[int, Meta(ge=1, le=1_000_000)]
    prompt: tuple[TokenId, ...] | str | None = None
    prompt_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    arrival_s: float | None = None


class Said(msgspec.Struct, frozen=True, rename={"who": "from"}):
    """What somebody says in a conversation."""

    who: str
    value: str


class Conversation(msgspec.Struct, frozen=True):
    """A conversation; other fields are passed over."""

    conversations: list[Said]


def read_trace(path: Path, plan: Plan) -> list[Ask]:
    """All asks of a file, by arrival, as fast as the plan plays them.

    Raises:
        BadInput: where it is none of these, or has nothing to ask.
    """
    if path.stat().st_size > TRACE_BYTES_MAX:
        raise BadInput("--trace", f"a file of at most {TRACE_BYTES_MAX:,} bytes", path)
    try:
        data = path.read_bytes()
        found = list(_conversed(data, plan) if data.lstrip().startswith(b"[") else _recorded(data, plan))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput("--trace", "JSON lines of requests, or a list of conversations", path, str(error)) from error
    if not found:
        raise BadInput("--trace", "a file with something to ask", path)
    timed = [ask for ask in found if ask.at_s is not None]
    if timed and len(timed) < len(found):
        raise BadInput("--trace", "a file in which every request has its arrival_s, or none", path)
    if not timed:
        return found
    arrivals = {ask.turn: ask.at_s for ask in found if ask.at_s is not None}
    first = min(arrivals.values())
    moved = [msgspec.structs.replace(ask, at_s=(arrivals[ask.turn] - first) / plan.trace_speed) for ask in found]
    return sorted(moved, key=lambda ask: ask.at_s or 0.0)


def share(asks: list[Ask], user: int, users: int) -> Iterator[Ask]:
    """What one of so many users asks of a trace."""
    yield from asks[user % users :: users]


def _recorded(data: bytes, plan: Plan) -> Iterator[Ask]:
    space = Space(vocabulary=plan.vocabulary)
    for number, line in enumerate(data.splitlines()):
        if not line.strip():
            continue
        recorded = msgspec.json.decode(line, type=Recorded)
        prompt = recorded.prompt
        if prompt is None:
            if recorded.prompt_tokens is None:
                raise BadInput("--trace", "lines with a prompt or prompt_tokens", "neither", f"line {number + 1}")
            drawn = random.Random(f"{plan.seed} trace {number}")
            prompt = tuple(drawn.choices(space.ordinary_ids, k=recorded.prompt_tokens))
        ids = () if isinstance(prompt, str) else prompt
        yield Ask(
            request=Request(prompt=ids, max_new_tokens=recorded.new_tokens),
            turn=number,
            at_s=recorded.arrival_s,
            text=prompt if isinstance(prompt, str) else None,
        )


def _conversed(data: bytes, plan: Plan) -> Iterator[Ask]:
    turn = 0
    for conversation in msgspec.json.decode(data, type=list[Conversation]):
        said = ""
        turns = conversation.conversations
        for place, each in enumerate(turns):
            said += each.value + "\n"
            answer = turns[place + 1].value if place + 1 < len(turns) else ""
            if each.who in HUMANS and answer:
                tokens = max(1, len(answer.split()))
                yield Ask(request=Request(prompt=(), max_new_tokens=tokens), turn=turn, text=said)
                turn += 1
