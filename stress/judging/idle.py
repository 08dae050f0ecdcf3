"""Idle: an endpoint's own answers while nobody else asks, as the judge where there is no model to ask.

Each request is asked alone, once in the order in which the load asked, and once more in the opposite order; what an earlier
run has asked and kept counts as asked before the load. Only where all of these answers agree do they judge: an endpoint that
does not repeat itself when idle cannot be held to anything. An answer that departs is a suspect. The experiment: the request
beside copies of itself, which changes the arithmetic and nobody's content. Where a copy departs in the same way it was
rounding; else the answer is wrong, and of what kind nobody can tell from outside.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import trio

from stress.judging.asking import Endpoint
from stress.judging.opinion import Complaint, Opinion, Standing
from stress.judging.streams import complaints
from stress.transcript import Exchange, Question
from targets.protocol import Kind

COPIES = (2, 4, 8)
ENOUGH = 2
"""So many idle answers must agree."""


class Answer(msgspec.Struct, frozen=True):
    """What a request was answered while nobody else asked.

    Attributes:
        key: Of the request.
        prompt_tokens: As the endpoint counts them; None where it does not.
    """

    key: str
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None
    prompt_tokens: int | None = None


class Answers:
    """Idle answers, in a file that several runs may share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, list[Answer]] = {}
        self._asked: Counter[str] = Counter()
        if path.is_file():
            for raw in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):  # the last line of one that was killed
                    self._take(msgspec.json.decode(raw, type=Answer))
        self._before = frozenset(self.known)

    def of(self, question: Question) -> list[Answer]:
        """All answers to a request."""
        return self.known.get(key_of(question), [])

    async def ask(self, endpoint: Endpoint, questions: Iterable[Question], over: Callable[[], bool] = bool) -> None:
        """Asks each request alone: all of them, and once more, in the opposite order, those that nobody asked before.

        Args:
            over: Whether nothing more shall be asked.
        """
        order = {key_of(question): question for question in questions}
        for wanted, names in ((1, list(order)), (ENOUGH, list(reversed(order)))):
            for name in names:
                if over():
                    return
                if self._asked[name] < wanted - (name in self._before):
                    heard = await endpoint.ask(order[name])
                    self._asked[name] += 1
                    if heard.outcome == "answered":
                        self.add(answer_of(name, heard))

    def add(self, answer: Answer) -> None:
        """Keeps an answer."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(answer) + b"\n")
        self._take(answer)

    def _take(self, answer: Answer) -> None:
        self.known.setdefault(answer.key, []).append(answer)


def key_of(question: Question) -> str:
    """A request's name: equal for equal requests."""
    said: object = question.request if question.text is None else question
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:24]


def answer_of(key: str, heard: Exchange) -> Answer:
    """What was heard of a request that was alone."""
    counted = None if heard.usage is None else heard.usage.prompt
    return Answer(key, heard.tokens, heard.text, heard.finish_reason, counted)


def judge(source: str, exchange: Exchange, answers: Sequence[Answer]) -> Opinion:
    """What is found of one response, given what its request is answered when idle."""
    found = list(complaints(exchange, None, None))
    why = ""
    departure = None
    if exchange.pieces:
        if len(answers) < ENOUGH:
            why = "it is not answered when it is asked alone"
        elif any((each.tokens, each.text) != (answers[0].tokens, answers[0].text) for each in answers):
            why = "the endpoint does not repeat itself when it is idle"
        else:
            departure = departs(exchange, answers[0])
    standing = {
        "cut": Standing.LOST,
        "failed": Standing.LOST,
        "unreached": Standing.UNREACHED,
    }.get(exchange.outcome, Standing.RIGHT)
    if found:
        standing = Standing.WRONG
    elif departure is not None:
        standing = Standing.SUSPECT
    elif why:
        standing = Standing.UNJUDGED
    return Opinion(
        source=source,
        number=exchange.number,
        outcome=exchange.outcome,
        standing=standing,
        tokens=len(exchange.tokens),
        judged=0 if why else len(exchange.tokens),
        submission=exchange.submission,
        complaints=tuple(found if departure is None else [departure, *found]),
        why=why,
    )


def departs(exchange: Exchange, answer: Answer) -> Complaint | None:
    """Where a response is not what it is when idle; what was heard before its end is a prefix of that."""
    whole = exchange.outcome == "answered"
    for position, (token, idle) in enumerate(zip(exchange.tokens, answer.tokens, strict=False)):
        if token != idle:
            what = f"token {position} is {token} where it gets {idle} when nobody else asks"
            return Complaint(what=what, position=position, expected=idle, actual=token)
    longer = len(exchange.tokens) > len(answer.tokens)
    if longer or (whole and len(exchange.tokens) != len(answer.tokens)):
        return Complaint(what=f"it has {len(exchange.tokens)} tokens, and {len(answer.tokens)} when nobody else asks")
    if exchange.text != answer.text and (whole or not answer.text.startswith(exchange.text)):
        return Complaint(what="its text is another one when nobody else asks")
    if whole and exchange.finish_reason != answer.finish_reason:
        what = f"it ends with the reason {exchange.finish_reason!r}, and {answer.finish_reason!r} when nobody else asks"
        return Complaint(what=what)
    counted = None if exchange.usage is None else exchange.usage.prompt
    if None not in (counted, answer.prompt_tokens) and counted != answer.prompt_tokens:
        what = f"its usage says {counted} prompt tokens, and {answer.prompt_tokens} when nobody else asks"
        return Complaint(kind=Kind.BOOKKEEPING, what=what)
    return None


async def is_rounding(endpoint: Endpoint, exchange: Exchange, answer: Answer) -> bool:
    """Whether a request beside copies of itself departs from its idle answer as the response did."""
    position = next(
        (at for at, pair in enumerate(zip(exchange.tokens, answer.tokens, strict=False)) if pair[0] != pair[1]), 0
    )
    for copies in COPIES:
        heard: list[Exchange] = []

        async def ask(into: list[Exchange] = heard) -> None:
            into.append(await endpoint.ask(exchange.question))

        async with trio.open_nursery() as nursery:
            for _ in range(copies):
                nursery.start_soon(ask)
        for each in heard:
            same = each.tokens[: position + 1] == exchange.tokens[: position + 1]
            if (same if exchange.tokens else each.text.startswith(exchange.text)) and departs(each, answer) is not None:
                return True
    return False
