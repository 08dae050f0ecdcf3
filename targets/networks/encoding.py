"""Encoding: what every network with an encoder says of itself, so that a decoder knows how to run it."""

from __future__ import annotations

from typing import Any

from torch import nn

from targets.tiny import BOS, EOS, PAD, VOCABULARY


class Encoding(nn.Module):
    """A network with an encoder.

    Attributes:
        family: Which of the built-in targets runs it.
        kept: (heads, size) of the K and V that each layer of its decoder keeps; empty where it keeps nothing.
        positions_max: As many tokens as it has places for.
        config: That of the network inside, by which it is named beside its weights; None for one of our own.
    """

    family: str
    kept: tuple[tuple[int, int], ...] = ()
    positions_max = 2048
    vocabulary = VOCABULARY
    special_ids = (BOS, EOS, PAD)
    config: Any = None
