"""Storms on decoders that run no network, to reach what can follow what, as far as the decoder lets it.

What the decoder does with requests does not depend on the logits, so they are drawn at random, and a storm takes a few
milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from fuzz.strategies import Space, storms
from fuzz.strategies.dice import SIZE, Dice
from targets.decoder import DecoderFactory
from targets.decoder.factory import DECODERS
from targets.decoder.runner import Feed, Runner
from targets.models import Model
from targets.protocol import Schedule


class Guessing(Runner):
    """Writes nothing and guesses: logits [B, V] at random."""

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        for feed in feeds:
            self.store.grew(feed.slot, len(feed.tokens))
        return torch.rand(len(feeds), self.plan.vocabulary)


def guessing(model: Model, target: str) -> DecoderFactory:
    """A built-in target that runs no network."""
    return DecoderFactory(model, DECODERS[target].with_(runner=Guessing), target)


def storm(seed: object, factory: DecoderFactory) -> Schedule:
    """One that a run might draw: the same seed, the same storm."""
    ops, settings = storms.storm(Dice(random.Random(str(seed)).randbytes(SIZE)), Space.of(factory))
    return Schedule(ops=ops, settings=settings)
