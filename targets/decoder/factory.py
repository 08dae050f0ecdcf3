"""The built-in target's factory: its knobs, what it lets us control, and how to open a fresh decoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from targets.decoder.engine import Decoder, Parts
from targets.decoder.slots import POISONS
from targets.models import DTYPES, Model
from targets.protocol import Control, Knob, Setting, check_settings, with_defaults

CONTEXT_TOKENS_MAX = 256
CONTEXT_TOKENS_LONG = 1280


class SlotsFactory:
    """Opens decoders with slot reuse over one model; fulfils `targets.protocol.Factory`.

    The targets of one factory share the network's weights, which nothing writes; `network` returns a copy of its own.
    """

    control = Control(rows=True, forced=True, logits=True, audit=True, float64=True, tags=True, poison=True, inspect=True)

    def __init__(self, model: Model, parts: Parts | None = None, name: str = "slots") -> None:
        self.name = name
        self.model = model
        self.parts = parts or Parts(decoder=Decoder)
        self.knobs = _knobs(model)
        self.vocabulary = model.plan.vocabulary
        self.special_ids = model.special_ids
        self.identity = model.identity
        self._networks: dict[tuple[str, str, str], nn.Module] = {}

    def open(self, settings: Mapping[str, Setting]) -> Decoder:
        """A fresh decoder; its slabs are new and dirty."""
        check_settings(self.knobs, settings)
        chosen = with_defaults(self.knobs, settings)
        return self.parts.decoder(self.parts, self.module(settings), self.model.plan, chosen)

    def module(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The network that targets opened with these settings run (one for all of them)."""
        key = self._precision(settings)
        if key not in self._networks:
            self._networks[key] = self.model.load(*key)
        return self._networks[key]

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The same network in memory of its own, for the reference."""
        return self.model.load(*self._precision(settings))

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As the knob says."""
        return int(with_defaults(self.knobs, settings)["context_tokens_max"])

    def _precision(self, settings: Mapping[str, Setting]) -> tuple[str, str, str]:
        chosen = with_defaults(self.knobs, settings)
        dtype, weights = str(chosen["dtype"]), str(chosen["weights"])
        return dtype, (dtype if weights == "same" else weights), str(chosen["device"])


def _knobs(model: Model) -> tuple[Knob, ...]:
    positions = model.plan.positions_max
    prefills = ("alone",) if model.plan.prompts_alone else ("mixed", "apart", "alone")
    contexts = tuple(min(size, positions) for size in (CONTEXT_TOKENS_MAX, 16, 32, 64, CONTEXT_TOKENS_LONG))
    return (
        Knob(name="slots", default=4, values=(4, 1, 2, 3, 8), low=1, high=1024, doc="rows of the KV slab"),
        Knob(name="slot_order", default="lifo", values=("lifo", "fifo"), doc="which free slot is taken next"),
        Knob(name="prefill", default=prefills[0], values=prefills, doc="which rows share a forward"),
        Knob(
            name="context_tokens_max",
            default=contexts[0],
            values=contexts,
            low=2,
            high=positions,
            may_change_outputs=True,
            unit="tokens",
            doc="prompt and answer together",
        ),
        Knob(
            name="queue_max",
            default=64,
            values=(64, 1, 2),
            low=0,
            high=1_000_000,
            may_change_outputs=True,
            unit="requests",
            doc="more are refused",
        ),
        Knob(name="admit_max", default=8, values=(8, 1, 2), low=1, high=1024, unit="requests a step", doc="admissions"),
        Knob(
            name="dtype",
            default="float64",
            values=tuple(DTYPES),
            may_change_outputs=True,
            drawn=False,
            doc="arithmetic and KV",
        ),
        Knob(
            name="weights",
            default="same",
            values=("same", *DTYPES),
            may_change_outputs=True,
            drawn=False,
            doc="the dtype weights are rounded to before they are upcast",
        ),
        Knob(
            name="device",
            default="cpu",
            values=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
            may_change_outputs=True,
            drawn=False,
            doc="where; cuda only on a machine that has it",
        ),
        Knob(
            name="sanitize",
            default=False,
            values=(False, True),
            drawn=False,
            doc="report who wrote every cell that a request attends to, and in what memory it lies",
        ),
        Knob(
            name="poison",
            default="none",
            values=("none", *POISONS),
            drawn=False,
            doc="what cells hold that are free, and padding; none leaves them as they are",
        ),
    )
