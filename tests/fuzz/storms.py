"""Storms on decoders that run no network, to reach what can follow what, as far as the decoder lets it.

What the decoder does with requests does not depend on the logits, so they are drawn at random, and a storm takes a few
milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from fuzz.strategies import Space, storms
from fuzz.strategies.dice import SIZE, Dice
from targets.decoder import DecoderFactory
from targets.decoder.factory import DECODERS
from targets.decoder.runner import Feed, Runner
from targets.models import Model
from targets.protocol import Schedule


class Guessing(Runner):
    """Writes nothing and guesses: logits [B, V] at random, the same ones on every target."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dice = torch.Generator().manual_seed(0)

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        for feed in feeds:
            self.store.grew(feed.slot, len(feed.tokens) - feed.drafts)
            if feed.drafts:
                self.behind[feed.submission] = torch.rand(feed.drafts, self.plan.vocabulary, generator=self.dice)
        return torch.rand(len(feeds), self.plan.vocabulary, generator=self.dice)


def guessing(model: Model, target: str) -> DecoderFactory:
    """A built-in target that runs no network."""
    return DecoderFactory(model, DECODERS[target].with_(runner=Guessing), target)


def storm(seed: object, factory: DecoderFactory) -> Schedule:
    """One that a run might draw: the same seed, the same storm."""
    ops, settings = storms.storm(Dice(random.Random(str(seed)).randbytes(SIZE)), Space.of(factory))
    return Schedule(ops=ops, settings=settings)
