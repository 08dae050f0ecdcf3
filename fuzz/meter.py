"""Meter: seconds spent inside a network's forwards, by hooks on the network itself."""

from __future__ import annotations

import time
from typing import Any

from torch import nn


class Meter:
    """Adds up the time inside the forwards of the networks it watches; a network is watched once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.forwards = 0
        self._watched: list[nn.Module] = []
        self._started = 0.0
        self._inside = 0  # threads may be in several forwards at once

    def watch(self, network: nn.Module | None) -> None:
        """Hooks a network; None, a network out of reach, is left out."""
        if network is None or any(network is known for known in self._watched):
            return
        self._watched.append(network)
        network.register_forward_pre_hook(self._begin)
        network.register_forward_hook(self._end, always_call=True)

    def _begin(self, *_: Any) -> None:
        if not self._inside:
            self._started = time.perf_counter()
        self._inside += 1

    def _end(self, *_: Any) -> None:
        self._inside -= 1
        if not self._inside:
            self.seconds += time.perf_counter() - self._started
        self.forwards += 1
