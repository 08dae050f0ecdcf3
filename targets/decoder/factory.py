"""The built-in targets' factory: their knobs, what they let us control, and how to open a fresh decoder."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from targets.decoder.crossing import CrossingRunner, CrossingStore
from targets.decoder.engine import Decoder
from targets.decoder.items import ItemRunner, ItemStore
from targets.decoder.knobs import knobs_of
from targets.decoder.opaque import Opaque
from targets.decoder.packed import PACKABLE, is_large, pack
from targets.decoder.pages import PageStore
from targets.decoder.parts import Parts
from targets.decoder.pictures import PictureRunner, PictureStore
from targets.decoder.private import PrivateStore
from targets.decoder.segments import SegmentRunner, SegmentStore
from targets.decoder.slots import SlotStore
from targets.decoder.static import StaticDecoder, StaticRunner, StaticScheduler, StaticStore
from targets.decoder.threads import ThreadRunner, ThreadStore
from targets.models import Model
from targets.protocol import BadInput, Control, LifeCycle, Setting, check_settings, with_defaults

DECODERS: dict[str, Parts] = {
    "slots": Parts(decoder=Decoder, store=SlotStore),
    "pages": Parts(decoder=Decoder, store=PageStore),
    "private": Parts(decoder=Decoder, store=PrivateStore),
    "threads": Parts(decoder=Decoder, store=ThreadStore, runner=ThreadRunner),
    "static": Parts(decoder=StaticDecoder, scheduler=StaticScheduler, store=StaticStore, runner=StaticRunner),
    "packed": Parts(decoder=Opaque, store=SegmentStore, runner=SegmentRunner),
    "encoder": Parts(decoder=Opaque, store=ItemStore, runner=ItemRunner),
    "seq2seq": Parts(decoder=Opaque, store=CrossingStore, runner=CrossingRunner),
    "pictures": Parts(decoder=Opaque, store=PictureStore, runner=PictureRunner),
}
"""The built-in targets, and the parts that make each of them."""

FAMILIES = {
    "causal": "a causal LM",
    "encoder": "an encoder-only network",
    "seq2seq": "an encoder and a decoder",
    "pictures": "a causal LM that sees pictures",
}
"""The families of networks. A target that has the name of one runs those only, and any other runs causal LMs."""


class DecoderFactory:
    """Opens decoders with one kind of store over one model; fulfils `targets.protocol.Factory`.

    The targets of one factory share the network's weights, which nothing writes; `network` returns a copy of its own.
    """

    def __init__(self, model: Model, parts: Parts | None = None, name: str = "slots") -> None:
        family = name if name in FAMILIES else "causal"
        if model.plan.family != family:
            raise BadInput("model", f"{FAMILIES[family]} for target {name}", model.name, "--model")
        if model.plan.prompts_alone and DECODERS[name].runner.together:
            rule = f"one whose prompts can share a forward, without ALiBi or recurrent states, for target {name}"
            raise BadInput("model", rule, model.name, "--model")
        self.name = name
        self.model = model
        self.parts = parts or DECODERS[name]
        self.knobs = knobs_of(model.plan, name)
        together = DECODERS[name].scheduler.together
        self.control = Control(
            rows=not together,
            joins=not together,
            forced=True,
            logits=True,
            audit=True,
            float64=True,
            tags=True,
            poison=True,
            life_cycles=True,
            inspect=not issubclass(DECODERS[name].decoder, Opaque),
            sampling=True,
            noise=True,
            shares=DECODERS[name].store.shares,
            salts=DECODERS[name].store.shares,
        )
        self.vocabulary = model.plan.vocabulary
        self.special_ids = model.special_ids
        self.identity = model.identity
        self._networks: dict[tuple[str, str, str, str], nn.Module] = {}

    def open(self, settings: Mapping[str, Setting]) -> Decoder:
        """A fresh decoder; its cells are new and dirty."""
        check_settings(self.knobs, settings)
        chosen = with_defaults(self.knobs, settings)
        return self.parts.decoder(self.parts, self.module(settings), self.model.plan, chosen)

    def module(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The network that targets opened with these settings run (one for all of them).

        Raises:
            BadInput: where its linear layers are to be packed, and can't be.
        """
        dtype, weights, device = self._precision(settings)
        linear = str(with_defaults(self.knobs, settings)["linear"])
        packable = dtype in PACKABLE and device == "cpu"
        if linear == "packed" and not packable:
            rule = f"auto or plain unless dtype is {' or '.join(PACKABLE)} and device is cpu"
            raise BadInput("linear", rule, linear, f"dtype {dtype} on {device}")
        key = (dtype, weights, device, linear)
        if key not in self._networks:
            network = self.model.load(dtype, weights, device)
            packs = linear == "packed" or (linear == "auto" and packable and is_large(network))
            self._networks[key] = pack(network) if packs else network
        return self._networks[key]

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The same network in memory of its own, for the reference; its linear layers are plain ones."""
        return self.model.load(*self._precision(settings))

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As the knob says."""
        return int(with_defaults(self.knobs, settings)["context_tokens_max"])

    def life_cycles(self, values: Mapping[str, tuple[Setting, ...]]) -> tuple[LifeCycle, ...]:
        """How requests may live where each knob has one of these values; fulfils `targets.protocol.Cycling`."""
        slots = max(int(value) for value in values["slots"])
        in_chunks = any(values.get("step_tokens_max", ())) or "ring" in values.get("window", ())
        to_page_ends = self.model.plan.recurrent and self.control.shares
        return tuple(
            LifeCycle(
                slots=slots,
                chunks=in_chunks or to_page_ends,
                preempts="preempt" in values and slots > 1,  # whoever is alone has the whole pool
                together=not self.control.joins,
                pipelined=bool(pipelined),
            )
            for pipelined in values.get("pipelined", (False,))
        )

    def _precision(self, settings: Mapping[str, Setting]) -> tuple[str, str, str]:
        chosen = with_defaults(self.knobs, settings)
        dtype, weights = str(chosen["dtype"]), str(chosen["weights"])
        return dtype, (dtype if weights == "same" else weights), str(chosen["device"])
