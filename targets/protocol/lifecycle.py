"""Life cycles: which turns the lives of requests may take in a target, so that it can be told what has not been seen.

Optional: `Control.life_cycles` declares it, and the factory then has a method `life_cycles`. It promises that the target
works in steps of this order: admissions; preemptions; the parts of tokens that went through the network; the tokens of all
rows; the requests that ended with them, each finished and freed. What is in flight lands before anybody is preempted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from targets.protocol.knobs import Setting


class LifeCycle(msgspec.Struct, frozen=True, kw_only=True):
    """What may happen to requests under some settings.

    Attributes:
        slots: As many requests hold something at once.
        chunks: A request's tokens may go through the network in parts.
        preempts: A request may lose its slot and wait to be admitted again.
        together: Requests are let in together, when nobody is left of those before.
        pipelined: Results are applied one step after the launch, so that a request may end while it is in flight.
    """

    slots: int
    chunks: bool = False
    preempts: bool = False
    together: bool = False
    pipelined: bool = False


@runtime_checkable
class Cycling(Protocol):
    """What a factory with `Control.life_cycles` has beside the methods of `Factory`."""

    def life_cycles(self, values: Mapping[str, tuple[Setting, ...]]) -> tuple[LifeCycle, ...]:
        """The life cycles that there are where each knob has one of these values."""
