"""Storms: dense schedules in which everything happens beside everything else, on decoders that run no network.

A run's own schedules tell stories; these are to reach what can follow what, as far as the decoder lets it. What the decoder
does with requests does not depend on the logits, so they are drawn at random, and a schedule takes a few milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from targets.decoder import DecoderFactory
from targets.decoder.factory import DECODERS
from targets.decoder.runner import Feed, Runner
from targets.models import Model
from targets.protocol import Cancel, Op, Request, Schedule, Setting, Step, Submit


class Guessing(Runner):
    """Writes nothing and guesses: logits [B, V] at random."""

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        for feed in feeds:
            self.store.grew(feed.slot, len(feed.tokens))
        return torch.rand(len(feeds), self.plan.vocabulary)


def guessing(model: Model, target: str) -> DecoderFactory:
    """A built-in target that runs no network."""
    return DecoderFactory(model, DECODERS[target].with_(runner=Guessing), target)


def storm(dice: random.Random, factory: DecoderFactory) -> Schedule:
    """A few dozen requests, steps, cancels and deadlines, in settings that are tight."""
    crowded = {"page_size": (1, 2, 4), "pool_tokens": (6, 10, 14, 20, 30)}
    tight = {**crowded, "step_tokens_max": (0, 0, 1, 2, 4), "context_tokens_max": (256, 16, 8), "slots": (1, 2, 3, 4, 8)}
    settings: dict[str, Setting] = {
        knob.name: dice.choice(tight.get(knob.name, knob.values)) for knob in factory.knobs if knob.drawn
    }
    cancels, empty, named = dice.random() / 3, dice.choice((0, 0.1, 0.4)), dice.choice((0, 0, 0.3, 0.7))
    ops: list[Op] = [Submit(_request(dice, empty))]
    submitted = 1
    for _ in range(dice.randrange(6, 40)):
        lately = range(max(0, submitted - 5), submitted)
        chance = dice.random()
        if chance < 0.35:
            ops.append(Submit(_request(dice, empty)))
            submitted += 1
        elif chance < 0.35 + cancels:
            ops.append(Cancel(dice.choice(lately)))
        else:
            rows = tuple(sorted({dice.choice(lately) for _ in range(3)})) if dice.random() < named else None
            ops.append(Step(dice.choice((1, 1, 1, 1, 3)), rows))
    return Schedule(ops=tuple(ops), settings=settings)


def _request(dice: random.Random, empty: float) -> Request:
    return Request(
        prompt=tuple(dice.randrange(8) for _ in range(dice.choice((0, 1, 1, 2, 2, 3, 5, 7, 9)))),
        max_new_tokens=0 if dice.random() < empty else dice.choice((1, 1, 2, 3, 6, 12)),
        stop=tuple(range(0, 320, dice.choice((2, 3, 8)))) if dice.random() < 0.4 else (),
        deadline_s=dice.randrange(8) if dice.random() < 0.3 else None,
    )
