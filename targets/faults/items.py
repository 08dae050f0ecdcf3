"""Faults of encoder-only batches: an item sees its neighbours, their padding, or parts of itself that it should not.

Most stand inside the network, where the batch is folded into windows, frames or lines and unfolded again: hooks change what
one module is given or gives, for as long as a forward takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from targets.decoder import ItemRunner
from targets.faults.bank import Fault, Probe, at_once, request
from targets.protocol import CheckName, Kind

Hooks = list[Any]
"""Handles of hooks, to be removed again."""


class HookedRunner(ItemRunner):
    """Hooks into the network during a forward; it is shared by all targets of a factory."""

    network: Any

    def answers(self, items: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hooks = self.hooks(lengths)
        try:
            return super().answers(items, lengths)
        finally:
            for hook in hooks:
                hook.remove()

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        """Sets the hooks for a batch of items of these lengths."""
        return []


class UnmaskedRunner(HookedRunner):
    """The encoder is not told what is padding. The twin tells it."""

    padding_encoded: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        probe = self.padding_encoded

        def without_mask(_: Any, arguments: Any, named: dict[str, Any]) -> Any:
            probe.reach()
            if not probe.honest:
                probe.change(not bool(named["attention_mask"].all()))
                named["attention_mask"] = torch.ones_like(named["attention_mask"])
            return arguments, named

        return [*super().hooks(lengths), self.network.encoder.register_forward_pre_hook(without_mask, with_kwargs=True)]


class PackedPositionRunner(HookedRunner):
    """Positions count on from the item before in the batch. The twin's begin anew with each."""

    position_of_neighbour: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        probe, before = self.position_of_neighbour, lengths.cumsum(0) - lengths

        def counted_on(_: Any, arguments: Any, named: dict[str, Any]) -> Any:
            probe.reach()
            if not probe.honest:
                probe.change(bool(before.any()))
                places = torch.arange(named["input_ids"].shape[1], device=before.device)
                named["position_ids"] = (places + before[:, None]).clamp(max=self.plan.positions_max - 1)
            return arguments, named

        return [*super().hooks(lengths), self.network.encoder.register_forward_pre_hook(counted_on, with_kwargs=True)]


class SortedRunner(ItemRunner):
    """Items go through the network in the order of their lengths, and so do the answers. The twin puts these back."""

    sorted_by_length: Probe

    def answers(self, items: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        probe, order = self.sorted_by_length, lengths.argsort(stable=True)
        probe.reach()
        answers = super().answers(items[order], lengths[order])
        if probe.honest:
            return answers[order.argsort()]
        probe.change(bool((order.diff() < 0).any()))
        return answers


class WideWindowRunner(HookedRunner):
    """Where something is padded, local layers get the mask of the global ones. The twin's keep their own."""

    window_lost_to_padding: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        probe, encoder = self.window_lost_to_padding, self.network.encoder
        seen: list[torch.Tensor] = []

        def widened(layer: Any, arguments: Any, named: dict[str, Any]) -> Any:
            mask = named["attention_mask"]
            if layer.attention_type == "full_attention":
                seen.append(mask)
            elif seen and mask is not None and seen[-1] is not None and bool((lengths != lengths.max()).any()):
                probe.reach()
                if not probe.honest:
                    probe.change(not torch.equal(mask, seen[-1]))
                    named["attention_mask"] = seen[-1]
            return arguments, named

        layers = encoder.layers
        return [*super().hooks(lengths), *(each.register_forward_pre_hook(widened, with_kwargs=True) for each in layers)]


class FoldedRunner(HookedRunner):
    """What was folded into the batch, parts of an item side by side, comes back as if items stood side by side."""

    def unfolded(self, probe: Probe, output: torch.Tensor, rows: int) -> torch.Tensor:
        """The parts [B n, ...] of B items, in an order that is only right where there is one; the twin's is right."""
        probe.reach()
        if probe.honest:
            return output
        probe.change(rows > 1)
        return output.view(-1, rows, *output.shape[1:]).transpose(0, 1).flatten(0, 1)


class WindowRunner(FoldedRunner):
    """Windows of one picture come back in another. The twin's come back where they belong."""

    windows_of_neighbour: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        def folded(_: Any, __: Any, output: Any) -> Any:
            return (self.unfolded(self.windows_of_neighbour, output[0], len(lengths)), *output[1:])

        block = self.network.encoder.encoder.layers[0].blocks[1]
        return [*super().hooks(lengths), block.attention.register_forward_hook(folded)]


class FrameRunner(FoldedRunner):
    """Patches that were followed through the frames of one film come back in another. The twin's do not."""

    frames_of_neighbour: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        def folded(_: Any, __: Any, output: Any) -> Any:
            return (self.unfolded(self.frames_of_neighbour, output[0], len(lengths)), *output[1:])

        layer = self.network.encoder.encoder.layer[0]
        return [*super().hooks(lengths), layer.temporal_attention.register_forward_hook(folded)]


class UnshiftedMaskRunner(HookedRunner):
    """Shifted windows go without their mask, so that one border of a picture sees the other. The twin's have it."""

    shift_mask_dropped: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        probe = self.shift_mask_dropped

        def bare(_: Any, arguments: Any) -> Any:
            probe.reach()
            if probe.honest:
                return None
            probe.change(arguments[1] is not None)
            return arguments[0], None, *arguments[2:]

        block = self.network.encoder.encoder.layers[0].blocks[1]
        return [*super().hooks(lengths), block.attention.register_forward_pre_hook(bare)]


class BatchNormRunner(HookedRunner):
    """A batch is normed by its own mean and spread, as in training. The twin's norms use those that they have learnt."""

    batch_statistics: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        probe, rows = self.batch_statistics, len(lengths)

        def normed(norm: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            probe.reach()
            if probe.honest or rows == 1:
                return output
            probe.change()
            return functional.batch_norm(arguments[0], None, None, norm.weight, norm.bias, training=True, eps=norm.eps)

        norms = [module for module in self.network.modules() if isinstance(module, nn.BatchNorm1d)]
        return [*super().hooks(lengths), *(norm.register_forward_hook(normed) for norm in norms)]


class ReusedKeysRunner(HookedRunner):
    """Columns attend to the K and V that were made for rows. The twin's make their own."""

    columns_reuse_rows: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        hooks = super().hooks(lengths)
        for layer in self.network.encoder.layers:
            made: list[torch.Tensor] = []
            hooks.append(layer.rows.project.register_forward_hook(self.keep(made)))
            hooks.append(layer.columns.project.register_forward_hook(self.reuse(made)))
        return hooks

    def keep(self, made: list[torch.Tensor]) -> Any:
        """A hook that keeps what a direction projected."""

        def keep(_: Any, __: Any, output: torch.Tensor) -> None:
            made.append(output)

        return keep

    def reuse(self, made: list[torch.Tensor]) -> Any:
        """A hook that gives the queries of one direction beside the K and V of the other."""
        probe = self.columns_reuse_rows

        def reuse(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            probe.reach()
            if probe.honest:
                return output
            probe.change()
            width = output.shape[-1] // 3
            return torch.cat([output[..., :width], made[-1][..., width:]], dim=-1)

        return reuse


class OneNormRunner(HookedRunner):
    """Columns are normed by the norm of rows. The twin's are normed by their own."""

    norm_of_rows: Probe

    def hooks(self, lengths: torch.Tensor) -> Hooks:
        layers = list(self.network.encoder.layers)
        return [
            *super().hooks(lengths),
            *(layer.columns.norm.register_forward_hook(self.by(layer.rows.norm)) for layer in layers),
        ]

    def by(self, other: nn.Module) -> Any:
        """A hook that norms by another norm."""
        probe = self.norm_of_rows

        def by(_: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            probe.reach()
            if probe.honest:
                return output
            normed: torch.Tensor = other(arguments[0])
            probe.change(not torch.equal(normed, output))
            return normed

        return by


_ENCODER = ("encoder",)
_TEXTS = ("tiny-bert", "tiny-modernbert")
_SEEN = (CheckName.ISOLATION, CheckName.SWAP)
_BESIDE = (request((1,), 1), request((1, 1), 1))
_TWO = at_once(request((1,), 1), request((2,), 1))
_ONE = at_once(request((1,), 1))

FAULTS = (
    Fault(
        name="padding-encoded",
        group="item padding",
        modelled_on="a batch of unequal lengths without its attention mask",
        doc="a text beside a longer one sees what stands behind it in its slot",
        mixins={"runner": UnmaskedRunner},
        smallest={Kind.INTERFERENCE: at_once(*_BESIDE), Kind.LEAK: at_once(*_BESIDE, sanitize=True)},
        checks=(*_SEEN, CheckName.RESIDUE),
        models=_TEXTS,
        targets=_ENCODER,
    ),
    Fault(
        name="position-of-neighbour",
        group="item position",
        modelled_on="packed batches whose positions run on over the border of an item (source article)",
        doc="the positions of an item count on from the one before it in the batch",
        mixins={"runner": PackedPositionRunner},
        smallest={Kind.INTERFERENCE: _TWO},
        checks=_SEEN,
        models=("tiny-bert",),
        targets=_ENCODER,
    ),
    Fault(
        name="sorted-by-length",
        group="item order",
        modelled_on="batches that are sorted by length to save padding, and not put back (sentence encoders)",
        doc="answers come in the order of the items' lengths",
        mixins={"runner": SortedRunner},
        smallest={Kind.LEAK: at_once(request((1, 1), 1), request((2,), 1))},
        checks=_SEEN,
        models=(*_TEXTS, "tiny-vit", "tiny-swin", "tiny-patchtst", "tiny-timesformer", "tiny-axial"),
        targets=_ENCODER,
    ),
    Fault(
        name="window-lost-to-padding",
        group="item window",
        modelled_on="local attention whose padding mask replaces the window instead of joining it (source article)",
        doc="in a batch that is padded, local layers see everything",
        mixins={"runner": WideWindowRunner},
        smallest={Kind.INTERFERENCE: at_once(request((2, *[1] * 9), 1), request((1,), 1))},
        checks=_SEEN,
        models=("tiny-modernbert",),
        targets=_ENCODER,
    ),
    Fault(
        name="windows-of-neighbour",
        group="item folding",
        modelled_on="windows reversed with the wrong batch stride (source article: windows of a Swin leak)",
        doc="windows of one picture come back in another",
        mixins={"runner": WindowRunner},
        smallest={Kind.LEAK: _TWO},
        checks=_SEEN,
        models=("tiny-swin",),
        targets=_ENCODER,
    ),
    Fault(
        name="frames-of-neighbour",
        group="item folding",
        modelled_on="divided space-time attention that unfolds patches and batch in the wrong order (source article)",
        doc="patches that were followed through the frames of one film come back in another",
        mixins={"runner": FrameRunner},
        smallest={Kind.LEAK: _TWO, Kind.INTERFERENCE: _TWO},
        checks=_SEEN,
        models=("tiny-timesformer",),
        targets=_ENCODER,
    ),
    Fault(
        name="shift-mask-dropped",
        group="item window",
        modelled_on="shifted windows without their mask (source article)",
        doc="one border of a picture sees the opposite one",
        mixins={"runner": UnshiftedMaskRunner},
        smallest={Kind.WRONG_ALONE: _ONE},
        checks=(CheckName.ISOLATION,),
        models=("tiny-swin",),
        targets=_ENCODER,
    ),
    Fault(
        name="batch-statistics",
        group="item norm",
        modelled_on="a batch norm that was left in training mode",
        doc="a batch is normed by its own mean and spread",
        mixins={"runner": BatchNormRunner},
        smallest={Kind.LEAK: _TWO},
        checks=_SEEN,
        models=("tiny-patchtst",),
        targets=_ENCODER,
    ),
    Fault(
        name="columns-reuse-rows",
        group="item direction",
        modelled_on="axial attention whose second direction reuses what the first one cached (source article)",
        doc="columns attend to the K and V of rows",
        mixins={"runner": ReusedKeysRunner},
        smallest={Kind.WRONG_ALONE: _ONE},
        checks=(CheckName.ISOLATION,),
        models=("tiny-axial",),
        targets=_ENCODER,
    ),
    Fault(
        name="norm-of-rows",
        group="item direction",
        modelled_on="two directions that share one norm, which shifts what is detected (source article)",
        doc="columns are normed by the norm of rows",
        mixins={"runner": OneNormRunner},
        smallest={Kind.WRONG_ALONE: _ONE},
        checks=(CheckName.ISOLATION,),
        models=("tiny-axial",),
        targets=_ENCODER,
    ),
)
