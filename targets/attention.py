"""The classic pair, as an example of one's own target: attention that keeps its cache in itself, and its honest twin.

A bare multi-head attention between an embedding and its transpose: d_model 64, 4 heads, no norm, no feed-forward; tokens
are told apart by position through a learned table. With the cache in the module, every request that the module serves
reads and grows the same one. In the twin the cache is passed in and out. Fuzz either with

    slotfuzz run --target targets.attention:shared
    slotfuzz run --target targets.attention:honest

All that a target of your own has to bring is a `Factory` (what can be set, how to open one) and a `Target` (submit, cancel,
step), as at the end of this file. It needs nothing of slotfuzz but `targets.protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from targets.protocol import (
    Admitted,
    Audit,
    Cells,
    Control,
    Emitted,
    Event,
    Finished,
    Freed,
    Inspection,
    Knob,
    Reason,
    Refused,
    Request,
    Row,
    Setting,
    check_settings,
)

Cache = tuple[torch.Tensor, torch.Tensor]
"""K and V, float64 [B, H, T, D] each."""

VOCABULARY, WIDTH, HEADS, POSITIONS = 96, 64, 4, 512


class Attention(nn.Module):
    """Multi-head attention with a cache that is the caller's: taken as an argument, returned grown.

    Shapes: B rows, Q new tokens, H heads, D head size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
        """Takes [B, Q, WIDTH] and the K, V before it; returns [B, Q, WIDTH] and K, V with the new ones behind."""
        shape = (*hidden.shape[:2], HEADS, WIDTH // HEADS)
        queries, keys, values = (part.view(shape).transpose(1, 2) for part in self.project(hidden).chunk(3, dim=-1))
        if cache is not None:
            keys, values = torch.cat([cache[0], keys], dim=2), torch.cat([cache[1], values], dim=2)
        new, seen = queries.shape[2], keys.shape[2]
        mask = torch.ones(new, seen, dtype=torch.bool).tril(diagonal=seen - new)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(hidden.shape)), (keys, values)


class SharedCacheAttention(Attention):
    """The same with the cache as an instance variable: the caller's cache is ignored, the module's own one grows."""

    cache: Cache | None = None

    def forward(self, hidden: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
        """As above, but for whose cache it is."""
        mixed, self.cache = super().forward(hidden, self.cache)
        return mixed, self.cache


class Network(nn.Module):
    """Token ids to logits through one attention."""

    def __init__(self, attention: type[Attention] = Attention) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.place = nn.Embedding(POSITIONS, WIDTH)
            self.attention = attention()
            self.score = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.double().requires_grad_(False)

    def step(self, ids: torch.Tensor, start: int, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
        """Logits [B, Q, V] of Q tokens (int64 [B, Q]) that stand at positions from `start` on, and the grown cache."""
        hidden = self.embed(ids) + self.place(torch.arange(start, start + ids.shape[1]))
        mixed, grown = self.attention(hidden, cache)
        return self.score(mixed), grown

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        """Logits [B, n, V] of int64 [B, n] without a cache: what the oracle asks for."""
        logits, _ = self.step(input_ids, 0, None)
        return logits


class Server:
    """Serves requests round robin, one token of each a step; fulfils `targets.protocol.Target`."""

    def __init__(self, network: Network, requests_max: int) -> None:
        self.network = network
        self.requests_max = requests_max
        self.waiting: list[int] = []
        self.requests: dict[int, Request] = {}
        self.answers: dict[int, list[int]] = {}
        self.caches: dict[int, Cache | None] = {}
        self.rows: list[Row] = []

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Queues a request; what can't be served is refused, and what asks for nothing is done at once."""
        room = POSITIONS - request.max_new_tokens
        if not 0 < len(request.prompt) <= room or max(request.prompt) >= VOCABULARY:
            return [Refused(submission, "empty, too long, or past the vocabulary")]
        if request.max_new_tokens == 0:
            return [Finished(submission, Reason.LENGTH, ())]
        self.requests[submission] = request
        self.waiting.append(submission)
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Ends a request early."""
        return self.end(submission, reason) if submission in self.requests else []

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """One token for each running request."""
        self.rows = []
        events: list[Event] = []
        while self.waiting and len(self.caches) < self.requests_max:
            submission = self.waiting.pop(0)
            self.caches[submission], self.answers[submission] = None, []
            events.append(Admitted(submission, 0))
        for submission in list(self.caches):
            events += self.advance(submission)
        return events

    def advance(self, submission: int) -> list[Event]:
        """One token for one request: its whole prompt the first time, then its last token."""
        request, answer = self.requests[submission], self.answers[submission]
        ids = answer[-1:] or list(request.prompt)
        start = len(request.prompt) + len(answer) - 1 if answer else 0
        with torch.inference_mode():
            logits, cache = self.network.step(torch.tensor([ids]), start, self.caches[submission])
        self.caches[submission] = cache
        self.rows.append(Row(submission, cache[0].shape[2] - len(ids), tuple(ids)))
        shown = logits[0, -1]
        forced = request.forced[len(answer)] if len(answer) < len(request.forced) else None
        answer.append(int(shown.argmax()) if forced is None else forced)
        events: list[Event] = [Emitted(submission, answer[-1], shown)]
        if answer[-1] in request.stop:
            events += self.end(submission, Reason.STOP)
        elif len(answer) == request.max_new_tokens:
            events += self.end(submission, Reason.LENGTH)
        return events

    def end(self, submission: int, reason: Reason) -> list[Event]:
        """Forgets a request."""
        del self.requests[submission]
        if submission in self.waiting:
            self.waiting.remove(submission)
        self.caches.pop(submission, None)
        return [Finished(submission, reason, tuple(self.answers.pop(submission, ()))), Freed(submission, 0)]

    def audit(self) -> Audit | None:
        """It keeps no slots."""
        return None

    def inspect(self) -> Inspection:
        """For `slotfuzz explain`: one row a forward, and what everybody's cache holds."""
        caches = {submission: cache for submission, cache in self.caches.items() if cache is not None}
        cells = {submission: Cells((keys[0],), (values[0],)) for submission, (keys, values) in caches.items()}
        return Inspection(tuple((row,) for row in self.rows), cells)

    def close(self) -> None:
        """Nothing to give back."""


class AttentionFactory:
    """Opens servers; fulfils `targets.protocol.Factory`."""

    knobs: tuple[Knob, ...] = (
        Knob(name="requests_max", default=4, values=(4, 1, 2), low=1, high=64, doc="requests that run together"),
    )
    control = Control(forced=True, logits=True, inspect=True)
    vocabulary = VOCABULARY
    special_ids: tuple[int, ...] = ()

    def __init__(self, name: str, attention: type[Attention]) -> None:
        self.name = name
        self.attention = attention
        self.identity = f"{name}, one attention of {HEADS} heads, seed 0"

    def open(self, settings: Mapping[str, Setting]) -> Server:
        """A fresh server, with a network of its own."""
        check_settings(self.knobs, settings)
        return Server(Network(self.attention), int(settings.get("requests_max", 4)))

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The reference: the honest attention, without a cache."""
        return Network()

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """Each server has its own."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As many as there are positions."""
        return POSITIONS


def shared() -> AttentionFactory:
    """The broken one: the module keeps the cache."""
    return AttentionFactory("attention-shared", SharedCacheAttention)


def honest() -> AttentionFactory:
    """The right one: the cache goes in and out."""
    return AttentionFactory("attention-honest", Attention)
