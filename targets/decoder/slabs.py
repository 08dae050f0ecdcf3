"""SlabStore: what stores have in common whose K and V stand in preallocated slabs, one of each a layer."""

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
        keys, values: A slab a layer; of no heads where the layer has no attention.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        shapes = [self.shape(layer) for layer in plan.layers]
        self.keys, self.values = (
            [torch.full(shape, dirt, dtype=layout.dtype, device=layout.device) for shape in shapes] for dirt in self.fill
        )

    @abstractmethod
    def shape(self, layer: LayerPlan) -> tuple[int, int, int, int]:
        """Of one layer's slabs."""

    @abstractmethod
    def at(self, place: int) -> int | tuple[slice, int]:
        """The index under which a place, a slot or a page, stands in a slab."""

    def poison(self, name: str) -> None:
        super().poison(name)
        for slabs, constant in zip((self.keys, self.values), self.fill, strict=True):
            for slab in slabs:
                slab.fill_(constant)

    def clean(self, place: int, constants: tuple[float, float]) -> None:
        where = self.at(place)
        for slabs, constant in zip((self.keys, self.values), constants, strict=True):
            for slab in slabs:
                slab[where] = constant

    def allocated(self) -> int:
        return sum(slab.untyped_storage().nbytes() for slab in (*self.keys, *self.values))


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
