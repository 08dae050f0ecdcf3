"""Network: a response's tokens against a local reference, as the oracle measures departures.

Log-probabilities first: where the endpoint tells them they are compared with those of the reference's logits. Where only
tokens are told the measure is their regret. What is heard of a request that was cancelled, or cut, is a prefix that must be
right. In float64 what is beyond the bound is wrong; in other types it is a suspect, and an experiment decides.
"""

from __future__ import annotations

import math

import msgspec
import torch

from oracle.departure import departures
from oracle.reference import Reference
from oracle.sampling import is_judged
from stress.endpoint.tokens import Tokenizer
from stress.judging.opinion import Complaint, Opinion, Standing
from stress.judging.prompts import in_ids
from stress.judging.streams import complaints
from stress.transcript import Exchange
from targets.protocol import Control, Kind, Request

TOLD_DIGITS = 1e-6
"""A log-probability of an endpoint that is not ours may have been rounded to seven digits."""
SAME_MIN = 4
"""So many tokens, all different, must be those of another place before one is called lost, doubled or late: answers that go
round in a circle are so by chance."""


class NetworkJudge:
    """Judges responses by a network.

    Attributes:
        reference: In the precision of what is served.
        control: What is served promises: one that is not ours may draw other noise.
    """

    def __init__(
        self,
        reference: Reference,
        control: Control,
        vocabulary: int,
        context_tokens_max: int,
        tokenizer: Tokenizer | None,
        foreign: bool = False,
    ) -> None:
        self.reference = reference
        self.control = msgspec.structs.replace(control, noise=False) if foreign else control
        self.foreign = foreign
        self.vocabulary = vocabulary
        self.context_tokens_max = context_tokens_max
        self.tokenizer = tokenizer

    def judge(self, source: str, exchange: Exchange) -> Opinion:
        """What is found of one response."""
        read = in_ids(exchange, self.tokenizer)
        if read is None:
            why = "its prompt was text, which does not have as many tokens here as the endpoint says"
            return self._opinion(source, exchange, [], why)
        return self._judge(source, read)

    def _judge(self, source: str, exchange: Exchange) -> Opinion:
        found = list(complaints(exchange, self.tokenizer, self.context_tokens_max))
        why, departure = self._unasked(exchange), None
        if not why and exchange.tokens:
            departure = self._departure(exchange)
            departure = departure and (_misplaced(exchange, departure, self._isolated(exchange)) or departure)
        elif not why and exchange.text:
            departure = self._text_departure(exchange)
        return self._opinion(source, exchange, found if departure is None else [departure, *found], why)

    def _opinion(self, source: str, exchange: Exchange, found: list[Complaint], why: str) -> Opinion:
        standing = Standing.RIGHT
        if why:
            standing = Standing.UNJUDGED
        elif exchange.outcome in ("cut", "failed"):
            standing = Standing.LOST
        elif exchange.outcome == "unreached":
            standing = Standing.UNREACHED
        if found:
            certain = self.reference.exact or any(complaint.kind is not None for complaint in found)
            standing = Standing.WRONG if certain else Standing.SUSPECT
        return Opinion(
            source=source,
            number=exchange.number,
            outcome=exchange.outcome,
            standing=standing,
            tokens=len(exchange.tokens),
            judged=0 if why else len(exchange.tokens),
            submission=exchange.submission,
            complaints=tuple(found),
            why=why,
        )

    def _unasked(self, exchange: Exchange) -> str:
        """Why the reference can't be asked; empty where it can, or where there is nothing to ask."""
        request, tokens = exchange.request, exchange.tokens
        if not tokens and not exchange.text:
            return ""
        if not request.prompt or max(request.prompt) >= self.vocabulary:
            return "its prompt is none that the network can be asked"
        if not tokens and self.tokenizer is None:
            return "its ids are not told"
        told = tokens and any(piece.logprobs for piece in exchange.pieces)
        if not told and not is_judged(request, self.control):
            return "how it was sampled is not known"
        return ""

    def _departure(self, exchange: Exchange) -> Complaint | None:
        """The first token that departs."""
        request, tokens = exchange.request, exchange.tokens
        for position, token in enumerate(tokens):
            if not 0 <= token < self.vocabulary:
                what = f"token {token}, which is outside 0..{self.vocabulary - 1}"
                return Complaint(kind=Kind.BOOKKEEPING, what=what, position=position, actual=token)
        told = self._told(exchange)
        found = departures([request], {0: tokens}, None, self.reference, self.control)
        suspect = next(found, None)
        if suspect is not None and (told is None or suspect.position <= (told.position or 0)):
            return Complaint(
                what=f"token {suspect.position} is {suspect.actual} where it gets {suspect.expected} alone",
                position=suspect.position,
                expected=suspect.expected,
                actual=suspect.actual,
                size=suspect.size,
                bound=suspect.bound,
            )
        return told

    def _told(self, exchange: Exchange) -> Complaint | None:
        """The first log-probability that departs: those of the first tokens, as far as they are told."""
        heard = [logprob for piece in exchange.pieces for logprob in piece.logprobs][: len(exchange.tokens)]
        told = [math.nan if logprob is None else logprob for logprob in heard]
        if not told:
            return None
        tokens = exchange.tokens[: len(told)]
        logits = self.reference.logits(exchange.request.prompt, exchange.tokens)[: len(told)].double()
        right = logits.log_softmax(-1).gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
        bound = 2 * self.reference.bound + torch.finfo(torch.float64).eps * (
            logits.shape[-1] + 4 * float(logits.abs().max())
        )
        if self.foreign:
            bound = max(bound, TOLD_DIGITS)
        for position, (ours, theirs) in enumerate(zip(right, told, strict=True)):
            if not abs(ours - theirs) <= bound:
                size = math.inf if math.isnan(theirs) else abs(ours - theirs)
                kind = None if math.isfinite(theirs) else Kind.NONFINITE
                what = f"token {position} has the log-probability {theirs:.6g} where it is {ours:.6g} alone"
                return Complaint(kind=kind, what=what, position=position, actual=tokens[position], size=size, bound=bound)
        return None

    def _text_departure(self, exchange: Exchange) -> Complaint | None:
        """Where a text whose ids are not told is not the one that the request gets alone."""
        assert self.tokenizer is not None, "`_unasked` has seen to it"
        ends = (*exchange.request.stop, *self.tokenizer.ends)  # who tells no ids was not asked to ignore ends
        ended = msgspec.structs.replace(exchange, request=msgspec.structs.replace(exchange.request, stop=ends))
        writer = self.tokenizer.writer()
        text = "".join(writer.push(token) for token in self._isolated(ended) if token not in ends) + writer.flush()
        said = exchange.text
        if said == text or (exchange.outcome != "answered" and text.startswith(said)):
            return None
        place = next((at for at, (ours, theirs) in enumerate(zip(text, said, strict=False)) if ours != theirs), 0)
        return Complaint(
            what=f"its text goes on with {said[place : place + 24]!r} where it is {text[place : place + 24]!r} alone"
        )

    def _isolated(self, exchange: Exchange) -> tuple[int, ...]:
        """The whole answer alone; empty where that is not known."""
        if not is_judged(exchange.request, self.control):
            return ()
        return self.reference.greedy(_alone(exchange.request), self.context_tokens_max)


def _alone(request: Request) -> Request:
    return msgspec.structs.replace(request, deadline_s=None, client_id=None, sample_of=None)


def _misplaced(exchange: Exchange, departure: Complaint, isolated: tuple[int, ...]) -> Complaint | None:
    """A departure that is one piece lost, doubled, or told too early, and else the answer that it gets alone."""
    tokens, position = exchange.tokens, departure.position
    if position is None or len(set(tokens[position:])) < SAME_MIN:
        return None
    here, next_one, rest = isolated[position : position + 1], isolated[position + 1 : position + 2], isolated[position + 2 :]
    ways = {
        "lost": (*next_one, *rest),
        "doubled": (*isolated[max(position - 1, 0) : position], *here, *next_one, *rest),
        "told too late": (*next_one, *here, *rest),
    }
    for way, answer in ways.items():
        if tokens[position:] == answer[: len(tokens) - position] != isolated[position : len(tokens)]:
            which = position - 1 if way == "doubled" else position
            what = f"token {which} of the answer that it gets alone is {way}"
            return msgspec.structs.replace(departure, kind=Kind.BOOKKEEPING, what=what)
    return None
