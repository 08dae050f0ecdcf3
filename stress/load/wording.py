"""Wording: a request as a plan has it asked: by which route, in which dialect, as ids or as text."""

from __future__ import annotations

import msgspec

from stress import wording
from stress.load.plan import Plan
from targets.protocol.schedule import Request

FIRST_CHARACTER, CHARACTERS = 32, 95
"""Printable ASCII: as text, an id is one of these."""


def spelled(request: Request) -> tuple[Request, str]:
    """A request whose prompt is text, and the text; the ids of the prompt are then the text's bytes."""
    text = "".join(chr(FIRST_CHARACTER + token % CHARACTERS) for token in request.prompt)
    return msgspec.structs.replace(request, prompt=tuple(text.encode())), text


def body_of(request: Request, plan: Plan, model: str, streamed: bool, text: str | None) -> bytes:
    """The body, as JSON. `text` stands for the prompt's ids where there is one."""
    chat = plan.route == "chat"
    return msgspec.json.encode(wording.body_of(request, model, plan.dialect, streamed=streamed, chat=chat, text=text))
