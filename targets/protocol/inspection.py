"""Inspection: what a target says of its last step, so that a recorded attention can be told whose it is.

Optional: `Control.inspect` declares it, and the target then has a method `inspect() -> Inspection`. It changes nothing.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec
import torch


class Row(msgspec.Struct, frozen=True):
    """One row of a forward.

    Attributes:
        submission: Whose it is.
        first: How many cells stood before its new tokens.
        tokens: The new tokens, as they went into the network; padding that only fills the batch is left out.
        slot: Where it stands, as in `Admitted`; None where the target has no slots.
    """

    submission: int
    first: int
    tokens: tuple[int, ...]
    slot: int | None = None


class Cells(msgspec.Struct, frozen=True, eq=False):
    """A request's cells as its next query would see them: K and V [H, T, D] of each layer."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class Inspection(msgspec.Struct, frozen=True, eq=False):
    """The last step.

    Attributes:
        forwards: Each forward that was run, in order, as its rows in the order of the batch.
        cells: By submission, of every request that is still running.
    """

    forwards: tuple[tuple[Row, ...], ...]
    cells: dict[int, Cells]


@runtime_checkable
class Inspectable(Protocol):
    """What a target with `Control.inspect` has beside the methods of `Target`."""

    def inspect(self) -> Inspection:
        """The last step; changes nothing."""
