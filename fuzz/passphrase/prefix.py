"""Prefix: how far a text before a task moves the answer, and where the attention goes.

As prefix of the same request, drift is the model's right, and is measured: in tokens (edit distance of greedy answers), and
in the attention of the task's last token. That is looked at over the task's own keys: how the weights are spread over them,
by KL divergence from those without a prefix, each renormalised; their logits before the softmax, from which what all have
in common is taken; and the mass that goes to the prefix. What a prompt begins with by the model's rule is part of neither.

Answers come from the built-in decoder in batches, so that one may differ by rounding from the same request's alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import msgspec
import torch

from fuzz.passphrase.texts import KINDS, Words
from fuzz.probe import Probe
from targets.decoder import DecoderFactory
from targets.protocol import BadInput, Finished, Request, Setting

LENGTHS = (1, 4, 8, 12, 16, 32, 64, 80, 96, 112, 128, 192, 256)
"""One token, which a trained model hardly heeds; a few; the usual four; and between them where a jump was reported."""
_ROWS = 8
_TINY = 1e-30


class Drift(msgspec.Struct, frozen=True):
    """What one text before every task did to the answers.

    Attributes:
        edits: Edit distance to the answer without it, in tokens, a task each.
        sample: The answer to the first task.
    """

    kind: str
    length: int
    content: int
    edits: tuple[int, ...]
    sample: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Over the tasks."""
        return mean(self.edits)


class Look(msgspec.Struct, frozen=True):
    """What one text did to the attention of the task's last token, averaged over tasks: [layer][head] each.

    Attributes:
        kl: Of the weights over the task's own keys, from those without the text, in nats.
        mass: The share of all weight that goes to the text.
        shift: Root mean square by which the logits over the task's own keys moved against each other.
    """

    kind: str
    length: int
    content: int
    kl: tuple[tuple[float, ...], ...]
    mass: tuple[tuple[float, ...], ...]
    shift: tuple[tuple[float, ...], ...]


@dataclass
class Experiment:
    """What is asked of one model.

    Attributes:
        settings: Of the built-in decoder: dtype, weights, device.
        trust: The texts are labelled as of low trust, and weigh less by so many nats; 0 for no label.
    """

    words: Words
    settings: dict[str, Setting]
    tasks: int
    contents: int
    lengths: Sequence[int]
    new_tokens: int
    looked_at: int
    trust: int = 0

    def __post_init__(self) -> None:
        self.factory = DecoderFactory(self.words.model)
        self.asked = self.words.tasks(self.tasks)
        longest = len(self.words.begin) + max(self.lengths) + max(map(len, self.asked)) + self.new_tokens
        if longest > self.words.model.plan.positions_max:
            raise BadInput("--lengths", f"short enough for a context of {self.words.model.plan.positions_max}", longest)
        if self.trust and "trust_bias" not in {knob.name for knob in self.factory.knobs}:
            raise BadInput("--trust", "left out for a model whose mask is not added to logits", self.words.model.name)
        self.opened: dict[str, Setting] = {
            **self.settings,
            "context_tokens_max": longest + 1,
            "prefill": "alone",
            **({"trust_bias": self.trust} if self.trust else {}),
        }

    def texts(self) -> list[tuple[str, int, int]]:
        """(kind, length, content) of everything that is put before a task, the shortest first."""
        return [(kind, length, content) for length in self.lengths for kind in KINDS for content in range(self.contents)]

    def request(self, task: tuple[int, ...], prefix: tuple[int, ...] = ()) -> Request:
        """A task behind a text."""
        begin = self.words.begin
        return Request(
            prompt=(*begin, *prefix, *task),
            max_new_tokens=self.new_tokens,
            untrusted=(len(begin), len(begin) + len(prefix)) if self.trust and prefix else (0, 0),
        )

    def drifts(self) -> Iterator[Drift]:
        """Every text, before every task."""
        plain = self.answers([self.request(task) for task in self.asked])
        for kind, length, content in self.texts():
            prefix = self.words.prefix(kind, content, length)
            answers = self.answers([self.request(task, prefix) for task in self.asked])
            edits = tuple(edit_distance(ours, theirs) for ours, theirs in zip(plain, answers, strict=True))
            yield Drift(kind, length, content, edits, answers[0])

    def answers(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """The greedy answers, in batches; no logits are kept, of which a large vocabulary has many."""
        decoder = self.factory.open({**self.opened, "slots": _ROWS, "queue_max": len(requests)})
        answers: dict[int, tuple[int, ...]] = {}
        for who, request in enumerate(requests):
            refused = decoder.submit(who, request)
            assert not refused, f"a task is served: {refused}"
        while len(answers) < len(requests):
            answers |= {event.submission: event.tokens for event in decoder.step() if isinstance(event, Finished)}
        return [answers[who] for who in range(len(requests))]

    def looks(self) -> Iterator[Look]:
        """Every text before the first few tasks."""
        tasks = self.asked[: self.looked_at]
        plain = [self.attention(self.request(task), len(task), 0) for task in tasks]
        for kind, length, content in self.texts():
            prefix = self.words.prefix(kind, content, length)
            seen = [self.attention(self.request(task, prefix), len(task), length) for task in tasks]
            pairs = list(zip(plain, seen, strict=True))
            yield Look(
                kind,
                length,
                content,
                kl=_mean([_divergence(before.weights, after.weights) for before, after in pairs]),
                mass=_mean([after.mass for _, after in pairs]),
                shift=_mean([(after.logits - before.logits).square().mean(-1).sqrt() for before, after in pairs]),
            )

    def attention(self, request: Request, own: int, before: int) -> _Seen:
        """The attention of a prompt's last token to the last `own` cells, and to the `before` cells in front of them."""
        decoder, probe = self.factory.open({**self.opened, "slots": 1}), Probe()
        decoder.submit(0, request)
        with probe:
            decoder.step()
        weights, logits, mass = [], [], []
        for layer in probe.take():
            if layer.weights is None or layer.logits is None:
                raise BadInput("--model", "one whose attention can be seen", self.words.model.name)
            last, raw = layer.weights[0, :, -1].double(), layer.logits[0, :, -1].double()  # [H, T]
            weights.append(last[:, -own:])
            logits.append(raw[:, -own:] - raw[:, -own:].mean(-1, keepdim=True))
            mass.append(last[:, -own - before : -own].sum(-1))
        return _Seen(torch.stack(weights), torch.stack(logits), torch.stack(mass))


@dataclass(frozen=True)
class _Seen:
    """One prompt's last token: weights and centred logits over the task's own keys [L, H, n], mass on the prefix [L, H]."""

    weights: torch.Tensor
    logits: torch.Tensor
    mass: torch.Tensor


def edit_distance(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The fewest insertions, deletions and exchanges that make one of the other (Levenshtein)."""
    row = list(range(len(theirs) + 1))
    for here, one in enumerate(ours, 1):
        before, row[0] = row[0], here
        for there, other in enumerate(theirs, 1):
            before, row[there] = row[there], min(row[there] + 1, row[there - 1] + 1, before + (one != other))
    return row[-1]


def _divergence(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """KL(before || after) [L, H] of two weights over the same keys [L, H, n], each renormalised, in nats."""
    first, second = ((each + _TINY) / (each + _TINY).sum(-1, keepdim=True) for each in (before, after))
    divergence: torch.Tensor = (first * (first.log() - second.log())).sum(-1).clamp(min=0)
    return divergence


def _mean(tables: Sequence[torch.Tensor]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in torch.stack(list(tables)).mean(0).tolist())
