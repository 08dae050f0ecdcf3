"""SlabStore: what stores have in common whose K and V stand in preallocated slabs, one a layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch

from targets.decoder.layout import Layout
from targets.decoder.store import Store
from targets.models import LayerPlan, Plan


class SlabStore(Store):
    """Owns the slabs.

    Attributes:
        slabs: One a layer, K and V in it; of no heads where the layer has no attention.
        keys, values: The two halves of each, as views.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.slabs = [torch.empty(self.shape(layer), dtype=layout.dtype, device=layout.device) for layer in plan.layers]
        halves = [self.halves(slab) for slab in self.slabs]
        self.keys, self.values = [keys for keys, _ in halves], [values for _, values in halves]
        self.soil()

    @abstractmethod
    def shape(self, layer: LayerPlan) -> tuple[int, ...]:
        """Of one layer's slab."""

    @abstractmethod
    def halves(self, slab: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a slab, or of a part of it, as views."""

    @abstractmethod
    def at(self, place: int) -> int | tuple[slice, int]:
        """The index under which a place, a slot or a page, stands in a slab."""

    def poison(self, name: str) -> None:
        super().poison(name)
        self.soil()

    def soil(self) -> None:
        """Fills every cell with the dirt, or the poison."""
        for slabs, constant in zip((self.keys, self.values), self.fill, strict=True):
            for slab in slabs:
                slab.fill_(constant)

    def clean(self, place: int, constants: tuple[float, float]) -> None:
        where = self.at(place)
        for slabs, constant in zip((self.keys, self.values), constants, strict=True):
            for slab in slabs:
                slab[where] = constant

    def allocated(self) -> int:
        return sum(slab.untyped_storage().nbytes() for slab in self.slabs)


def memory_of(slabs: Iterable[torch.Tensor], row: int, first: int = 0) -> tuple[tuple[int, int, int], ...]:
    """The memory of one row of some slabs: (allocation, first byte, end byte) of each, the empty ones left out.

    Allocations are numbered from `first` on by the memory they lie in: two slabs that were views of one have one number.
    """
    numbers: dict[int, int] = {}
    ranges = []
    for slab in slabs:
        if slab.numel():
            base, view = slab.untyped_storage().data_ptr(), slab[row]
            begins = view.data_ptr() - base
            ranges.append((first + numbers.setdefault(base, len(numbers)), begins, begins + view.nbytes))
    return tuple(ranges)
