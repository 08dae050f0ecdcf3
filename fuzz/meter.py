"""Meter: the forwards of a network, and the seconds spent inside them, by hooks on the network itself."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


class Meter:
    """Adds up the forwards of the networks that it watches, and the time inside them; a network is watched once.

    Attributes:
        rows, places: Of forwards of tokens: their rows, and the places for tokens in these, padding included.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.forwards = self.rows = self.places = 0
        self._watched: list[nn.Module] = []
        self._started = 0.0
        self._inside = 0  # threads may be in several forwards at once

    def watch(self, network: nn.Module | None) -> None:
        """Hooks a network; None, a network out of reach, is left out."""
        if network is None or any(network is known for known in self._watched):
            return
        self._watched.append(network)
        network.register_forward_pre_hook(self._begin, with_kwargs=True)
        network.register_forward_hook(self._end, always_call=True)

    def _begin(self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named["input_ids"] if "input_ids" in named else next(iter(arguments), None)
        if isinstance(ids, torch.Tensor) and ids.dim() == 2:  # [B, Q]
            self.rows += ids.shape[0]
            self.places += ids.numel()
        if not self._inside:
            self._started = time.perf_counter()
        self._inside += 1

    def _end(self, *_: Any) -> None:
        self._inside -= 1
        if not self._inside:
            self.seconds += time.perf_counter() - self._started
        self.forwards += 1
