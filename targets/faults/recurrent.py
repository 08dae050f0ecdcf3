"""Faults of recurrent state: a slot's state that is not its owner's, or not of its owner's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from targets.decoder import Decoder, Feed, Layout, Runner, StateStore
from targets.decoder.states import Key
from targets.faults.bank import Fault, Probe, at_once, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import Admitted, CheckName, Event, Kind

MODELS = ("tiny-bamba", "tiny-olmo-hybrid", "tiny-mamba")


class ZeroedStates(StateStore):
    """Every state is zero when the decoder opens, as it is where memory comes zeroed."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        for slab in self.slabs.values():
            slab.zero_()

    def stale(self, slot: int) -> bool:
        """Whether a slot has a state."""
        return any(bool(slab[slot].any()) for slab in self.slabs.values())


class KeptStates(ZeroedStates):
    """A slot keeps the state of the owner that left. The twin sets it to zero for the next one."""

    state_not_reset: Probe

    def begin(self, slot: int) -> None:
        probe = self.state_not_reset
        probe.reach()
        if probe.honest:
            super().begin(slot)
        else:
            probe.change(self.stale(slot))


class LateResetStates(ZeroedStates):
    """Leaves it to the first forward to set a new owner's state to zero."""

    def begin(self, slot: int) -> None:
        pass


class LateResetRunner(Runner):
    """A state is set to zero by the forward that begins a prompt, and what has one token begins none.

    The twin goes by how many cells stand before it.
    """

    one_token_prompt_decodes: Probe

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        probe = self.one_token_prompt_decodes
        for feed in feeds:
            if self.store.lengths[feed.slot]:
                continue
            probe.reach()
            if probe.honest or len(feed.tokens) > 1:
                StateStore.begin(self.states, feed.slot)
            elif isinstance(self.states, ZeroedStates):
                probe.change(self.states.stale(feed.slot))
        return super().forward(feeds)


class SharedConvStates(StateStore):
    """There is one convolution state for all rows: each reads it, and the last one's stays. The twin keeps one a slot."""

    state_shared: Probe

    def take(self, key: Key, slots: torch.Tensor) -> torch.Tensor:
        return super().take(key, self.where(key, slots))

    def put(self, key: Key, slots: torch.Tensor, states: torch.Tensor) -> None:
        where = self.where(key, slots)
        if key[1] == "conv":
            self.state_shared.change(not torch.equal(where, slots))
        for row in range(len(slots)):  # in order: several rows may go to one place
            super().put(key, where[row : row + 1], states[row : row + 1])

    def begin(self, slot: int) -> None:
        for key, slab in self.slabs.items():
            slab[self.where(key, torch.tensor([slot], device=slab.device))] = 0

    def where(self, key: Key, slots: torch.Tensor) -> torch.Tensor:
        """The rows of a slab in which the slots' states stand."""
        probe = self.state_shared
        probe.reach()
        return torch.zeros_like(slots) if key[1] == "conv" and not probe.honest else slots


class PaddedPromptsRunner(Runner):
    """Prompts of unequal length share a forward, and the states behind it are those behind the padding.

    The twin runs prompts of equal length together, which need none.
    """

    state_of_padding: Probe

    def group(self, feeds: Sequence[Feed]) -> list[list[int]]:
        groups = super().group(feeds)
        prompts = [index for index, feed in enumerate(feeds) if len(feed.tokens) > 1]
        if not self.states.slabs or not prompts:
            return groups
        probe = self.state_of_padding
        probe.reach()
        lengths = sorted({len(feeds[index].tokens) for index in prompts})
        probe.change(not probe.honest and len(lengths) > 1)
        together = [[index for index in prompts if len(feeds[index].tokens) == length] for length in lengths]
        decodes = [group for group in groups if len(feeds[group[0]].tokens) == 1]
        return [*(together if probe.honest else [prompts]), *decodes]


class JoiningDecoder(Decoder):
    """A row that joins rows which have states takes over one of theirs. The twin gives it back its own."""

    state_of_neighbour: Probe

    def admit(self, rows: tuple[int, ...] | None) -> list[Event]:
        running = self.batch.slots()
        events = super().admit(rows)
        probe = self.state_of_neighbour
        for place, event in enumerate(events):
            if running and isinstance(event, Admitted):
                probe.reach()
                own = self.states.snapshot(event.slot)
                other = self.states.snapshot(running[(len(running) + place) % len(running)])
                self.states.restore(event.slot, own if probe.honest else other)
                probe.change(not all(map(torch.equal, own, self.states.snapshot(event.slot))))
        return events


class RowStates(StateStore):
    """States stand where `table`, int64 [S], says of each slot; a new owner's is set to zero when that is known.

    Attributes:
        new: Slots whose new owners have not run yet.
    """

    state_by_row: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.table = torch.arange(layout.slots + layout.null, device=layout.device)
        self.new: list[int] = []

    def begin(self, slot: int) -> None:
        self.new.append(slot)

    def move(self, slots: list[int]) -> None:
        """The slots of the rows, in order; the twin leaves every state in the place of its slot."""
        probe = self.state_by_row
        probe.reach()
        for row, slot in enumerate(slots):
            place = slot if probe.honest else row
            probe.change(slot not in self.new and int(self.table[slot]) != place)
            self.table[slot] = place
        for slot in self.new:
            super().begin(int(self.table[slot]))
        self.new.clear()

    def take(self, key: Key, slots: torch.Tensor) -> torch.Tensor:
        return super().take(key, self.table[slots])

    def put(self, key: Key, slots: torch.Tensor, states: torch.Tensor) -> None:
        super().put(key, self.table[slots], states)


class RowStatesDecoder(Decoder):
    """States are kept by row, and stay behind when a request moves to another one."""

    states: RowStates

    def feeds(self, chosen: list[int]) -> list[Feed]:
        self.states.move(self.batch.slots())
        return super().feeds(chosen)


_LEAKS = (CheckName.SWAP, CheckName.RESIDUE)
_PROMPTS = (request((1, 1), 2), request((2, 2, 2), 1))

FAULTS = (
    Fault(
        name="state-not-reset",
        group="recurrent state",
        modelled_on="vllm#32118 (a state that is read instead of zeroed)",
        doc="a slot's next owner goes on from the state of its last one",
        mixins={"states": KeptStates},
        smallest={Kind.LEAK: one_after_another(request((1,), 1), request((2,), 1))},
        checks=_LEAKS,
        models=MODELS,
    ),
    Fault(
        name="one-token-prompt-decodes",
        group="recurrent state",
        modelled_on="vllm#32118 (a prefill of one token taken for a decode)",
        doc="a prompt of one token is taken for a decode, and its state is not set to zero",
        mixins={"states": LateResetStates, "runner": LateResetRunner},
        smallest={Kind.LEAK: one_after_another(request((1,), 1), request((2,), 1))},
        checks=_LEAKS,
        models=MODELS,
    ),
    Fault(
        name="state-shared",
        group="recurrent state",
        modelled_on="mistral.rs#2306 (a convolution state of batch 1)",
        doc="all rows share one convolution state",
        mixins={"states": SharedConvStates},
        smallest={Kind.LEAK: at_once(request((1,), 2), request((2,), 1))},
        checks=(CheckName.SWAP,),
        models=MODELS,
    ),
    Fault(
        name="state-of-padding",
        group="recurrent state",
        modelled_on="transformers#48256, transformers#32677 (states taken behind the padding)",
        doc="prompts of unequal length share a forward, whose padding goes into the states of the shorter ones",
        mixins={"runner": PaddedPromptsRunner},
        smallest={
            Kind.INTERFERENCE: at_once(*_PROMPTS),
            Kind.LEAK: at_once(*_PROMPTS, sanitize=True),
        },
        checks=(CheckName.ISOLATION, CheckName.RESIDUE),
        models=MODELS,
    ),
    Fault(
        name="state-of-neighbour",
        group="recurrent state",
        modelled_on="mlx-lm#1169 (a new row silently uses another row's state)",
        doc="a request that joins others goes on from the state of one of them",
        mixins={"decoder": JoiningDecoder},
        smallest={Kind.LEAK: one_after_another(request((1,), 2), request((2,), 1))},
        checks=(CheckName.SWAP,),
        models=MODELS,
    ),
    Fault(
        name="state-by-row",
        group="recurrent state",
        modelled_on="TensorRT-LLM#2787, omlx#2201 (row state indexed by another axis than the slot's)",
        doc="states are kept by row, and stay behind when a request moves to another one",
        mixins={"states": RowStates, "decoder": RowStatesDecoder},
        smallest={Kind.LEAK: schedule(request((1,), 1), request((2,), 2))},
        checks=_LEAKS,
        models=MODELS,
    ),
)
