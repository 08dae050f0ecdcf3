"""Counters: what the driver and the network did since the server began. Written by them, read by `metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from stress.endpoint.orders import Outcome


@dataclass
class Counters:
    """What the driver did.

    Attributes:
        steps: Steps of the target.
        ended: Requests by outcome.
        prompt_tokens: Of requests that were admitted.
        cached_tokens: Those of them that had K and V already.
        new_tokens: That the target gave.
        fed_tokens: That went through the network and were somebody's, so that the rest of what it was fed is padding.
        replaced: How often the target raised, and another one took its place.
    """

    steps: int = 0
    ended: Counter[Outcome] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    fed_tokens: int = 0
    replaced: int = 0


class ForwardWatch:
    """Counts forwards by a hook on the network.

    Attributes:
        forwards, rows, tokens: Forwards; their rows, and the places for tokens in these, padding included.
    """

    def __init__(self, network: nn.Module | None) -> None:
        self.forwards = self.rows = self.tokens = 0
        self.watches = network is not None
        self._hook = None if network is None else network.register_forward_pre_hook(self._begin, with_kwargs=True)

    def _begin(self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        self.forwards += 1
        self.rows += ids.shape[0]
        self.tokens += ids.numel()

    def close(self) -> None:
        """Takes the hook away."""
        if self._hook is not None:
            self._hook.remove()
