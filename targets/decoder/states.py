"""StateStore: the recurrent states of every slot, beside its K and V: one slab a state, [S, *shape].

A recurrent state has no positions, so no mask can keep an earlier owner out: what a slot holds is its owner's only because
`begin` set it to zero, which is also what a forward without any state starts from. Slabs start dirty, as those of K and V
do, and a freed slot keeps its last owner's states until they are poisoned or set to zero for the next one.

A layer takes its rows' states at the start of a forward and gives them back changed, or changes them in place;
`StateCache` holds them in between and puts them back when the forward is done.
"""

from __future__ import annotations

import torch

from targets.decoder.layout import Layout
from targets.decoder.rows import Rows
from targets.decoder.slabs import memory_of
from targets.decoder.slots import SlotCache
from targets.decoder.store import POISONS, Store
from targets.models import DTYPES, Plan

_DIRT = -0.75
Key = tuple[int, str, int]
"""A state: its layer, its kind, and which of the layer's states of that kind."""


class StateStore:
    """Owns the slabs.

    Attributes:
        slabs: By state, [S, *shape] in the dtype in which the network keeps it; empty where the network is not recurrent.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.slabs: dict[Key, torch.Tensor] = {
            (layer, state.kind, state.index): torch.full(
                (layout.slots + layout.null, *state.shape),
                _DIRT,
                dtype=layout.arithmetic if state.dtype is None else DTYPES[state.dtype],
                device=layout.device,
            )
            for layer, kept in enumerate(plan.layers)
            for state in kept.states
        }
        self._poison: float | None = None

    def poison(self, name: str) -> None:
        """Fills every state with one of the `POISONS`, and from now on those of every slot that is freed."""
        _, self._poison = POISONS[name]
        for slab in self.slabs.values():
            slab.fill_(self._poison)

    def begin(self, slot: int) -> None:
        """A new owner moves in: it has no state yet, and that is zero."""
        for slab in self.slabs.values():
            slab[slot] = 0

    def scrub(self, slot: int) -> None:
        """Fills a freed slot with the poison; without one, its states stay as they are."""
        if self._poison is not None:
            for slab in self.slabs.values():
                slab[slot] = self._poison

    def take(self, key: Key, slots: torch.Tensor) -> torch.Tensor:
        """Copies of one state, [B, *shape], of the rows' slots, int64 [B]."""
        return self.slabs[key][slots]

    def put(self, key: Key, slots: torch.Tensor, states: torch.Tensor) -> None:
        """One state, [B, *shape], back to the rows' slots."""
        self.slabs[key][slots] = states.to(self.slabs[key].dtype)

    def snapshot(self, slot: int) -> tuple[torch.Tensor, ...]:
        """Copies of a slot's states, in the order of the slabs: what a prefix that ends here leaves behind."""
        return tuple(slab[slot].clone() for slab in self.slabs.values())

    def restore(self, slot: int, states: tuple[torch.Tensor, ...]) -> None:
        """Puts a snapshot into a slot, as if its owner had run the same tokens itself."""
        for slab, state in zip(self.slabs.values(), states, strict=True):
            slab[slot] = state

    def storage(self, slot: int, first: int) -> tuple[tuple[int, int, int], ...]:
        """The memory of a slot's states: (slab, first byte, end byte) of each, slabs numbered from `first` on."""
        return memory_of(self.slabs.values(), slot, first)

    @property
    def allocated(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.nbytes for slab in self.slabs.values())


class StateCache(SlotCache):
    """What a recurrent network sees as `cache=`: K and V as ever, and the states of this forward's rows.

    Attributes:
        held: The states as they are now, [B, *shape] each; a layer may change them in place.
    """

    def __init__(self, store: Store, rows: Rows, states: StateStore) -> None:
        super().__init__(store, rows)
        self.states = states
        self.held: dict[Key, torch.Tensor] = {}

    def state(self, key: Key) -> torch.Tensor:
        """One state of the rows, taken from its slab the first time."""
        if key not in self.held:
            self.held[key] = self.states.take(key, self.rows.slots)
        return self.held[key]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        """The last K inputs of a layer's convolution, [B, C, K]."""
        return self.state((layer_idx, "conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        """A layer's recurrent state, [B, …]."""
        return self.state((layer_idx, "recurrent", state_idx))

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> torch.Tensor:
        """Takes the inputs [B, C, Q] of this forward; returns them behind the K before them, [B, C, K + Q]."""
        before = self.get_conv_state(layer_idx, state_idx)
        inputs = torch.cat([before, conv_states], dim=-1)
        self.held[layer_idx, "conv", state_idx] = inputs[..., -before.shape[-1] :]
        return inputs

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> torch.Tensor:
        """Takes a layer's recurrent state behind this forward, [B, …]."""
        self.held[layer_idx, "recurrent", state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        """No: nothing is ever rolled back."""
        return False

    def keep(self) -> None:
        """Puts every state back into its slab."""
        for key, state in self.held.items():
            self.states.put(key, self.rows.slots, state)
