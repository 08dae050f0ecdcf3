"""Faults of what an encoder made and several requests read: wrongly named, mixed up, written to, or never let go."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from targets.decoder import (
    CrossingRunner,
    Entry,
    Layout,
    PictureRunner,
    PictureStore,
    Rows,
    Shelf,
    SourceRunner,
    SourceStore,
)
from targets.faults.bank import Fault, Probe, at_once, in_front, one_after_another, request, schedule
from targets.models import Plan
from targets.networks.pictured import PATCHES
from targets.protocol import Cancel, CheckName, Kind, Step


class SmallHashShelf(Shelf):
    """A picture's name has three bits of its first token. The twin's is a hash of all of them."""

    source_hash_small: Probe

    def name(self, content: tuple[int, ...], salt: int | None) -> str:
        probe, name = self.source_hash_small, super().name(content, salt)
        probe.reach()
        if probe.honest:
            return name
        small = f"{content[0] % 8}"
        probe.change(any(entry.content != content for entry in self.entries.values() if entry.name == small))
        return small


class SmallHashStore(PictureStore):
    """Pictures are found by a hash that is squeezed into a few bits."""

    source_hash_small: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.shelf, SmallHashShelf, source_hash_small=self.source_hash_small)


class TaillessShelf(Shelf):
    """A source's name leaves its last token out. The twin's has all of them."""

    source_without_tail: Probe

    def name(self, content: tuple[int, ...], salt: int | None) -> str:
        probe = self.source_without_tail
        probe.reach()
        if probe.honest:
            return super().name(content, salt)
        name = super().name(content[:-1], salt)
        probe.change(any(entry.content != content for entry in self.entries.values() if entry.name == name))
        return name


class TaillessStore(SourceStore):
    """A source is found by all but its last token."""

    source_without_tail: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.shelf, TaillessShelf, source_without_tail=self.source_without_tail)


class BySlotShelf(Shelf):
    """What the last owner of a slot looked at is taken for what the next one brings. The twin looks it up."""

    features_by_slot: Probe

    def hold(self, slot: int, content: tuple[int, ...], salt: int | None) -> Entry:
        probe, last = self.features_by_slot, self.__dict__.setdefault("last", {})
        probe.reach()
        old: Entry | None = last.get(slot)
        if probe.honest or old is None or old.features is None:
            entry = last[slot] = super().hold(slot, content, salt)
            return entry
        probe.change(old.content != content)
        self.entries.setdefault(old.name, old)
        self.held[slot] = old
        old.users.append(slot)
        return old


class BySlotStore(PictureStore):
    """Features are kept by slot."""

    features_by_slot: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.shelf, BySlotShelf, features_by_slot=self.features_by_slot)


class SortedSourceRunner(SourceRunner):
    """Sources are encoded in the order of their lengths, and not put back. The twin puts them back."""

    sources_sorted: Probe

    def encoded(self, sources: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        probe, order = self.sources_sorted, lengths.argsort(stable=True)
        probe.reach()
        features = super().encoded(sources[order], lengths[order])
        if probe.honest:
            return features[order.argsort()]
        probe.change(bool((order.diff() < 0).any()))
        return features


class UnmaskedSourceRunner(SourceRunner):
    """Sources are encoded without a mask, padding and all. The twin's are masked."""

    source_padding_encoded: Probe

    def encoded(self, sources: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        probe, whole = self.source_padding_encoded, torch.full_like(lengths, sources.shape[1])
        probe.reach()
        if probe.honest:
            return super().encoded(sources, lengths)
        probe.change(not torch.equal(lengths, whole))
        return super().encoded(sources, whole)


class WideCrossRunner(CrossingRunner):
    """A row sees one column more than its source has. The twin sees those that it has."""

    cross_mask_one_wide: Probe

    def across(self, entries: Sequence[Entry]) -> tuple[torch.Tensor, torch.Tensor]:
        probe, (source, mask) = self.cross_mask_one_wide, super().across(entries)
        probe.reach()
        if probe.honest:
            return source, mask
        wide = mask | torch.nn.functional.pad(mask, (1, 0), value=True)[:, :-1]
        probe.change(not torch.equal(wide, mask))
        return source, wide


class RestartingPictureRunner(PictureRunner):
    """Features are counted from a forward's first token. The twin counts from the prompt's."""

    picture_restarts_in_chunk: Probe

    def which(self, rows: Rows) -> torch.Tensor:
        probe, right = self.picture_restarts_in_chunk, super().which(rows)
        probe.reach()
        if probe.honest:
            return right
        probe.change(bool((rows.positions[:, 0] < PATCHES).logical_and(rows.positions[:, 0] > 0).any()))
        return right - right[:, :1]


class FirstPictureRunner(PictureRunner):
    """All rows of a forward are given the picture of the first one. The twin's have their own."""

    picture_of_first_row: Probe

    def looked_at(self, rows: Rows) -> list[Entry]:
        probe, entries = self.picture_of_first_row, super().looked_at(rows)
        probe.reach()
        if probe.honest:
            return entries
        probe.change(any(entry is not entries[0] for entry in entries))
        return entries[:1] * len(entries)


class UncountedShelf(Shelf):
    """The first user to leave takes an entry's memory with it, and the next source is put there. The twin counts users."""

    source_freed_in_use: Probe

    def release(self, slot: int) -> None:
        probe, entry = self.source_freed_in_use, self.held.get(slot)
        super().release(slot)
        probe.reach()
        if not probe.honest and entry is not None and entry.users and entry.features is not None:
            self.__dict__.setdefault("freed", []).append(entry.features)

    def put(self, entry: Entry, features: torch.Tensor) -> None:
        freed: list[torch.Tensor] = self.__dict__.setdefault("freed", [])
        if freed:
            old = freed.pop()
            rows = min(len(old), len(features))
            self.source_freed_in_use.change(not torch.equal(old[:rows], features[:rows]))
            old[:rows] = features[:rows]
        super().put(entry, features)


class UncountedStore(SourceStore):
    """What an encoder made is freed while others use it."""

    source_freed_in_use: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.shelf, UncountedShelf, source_freed_in_use=self.source_freed_in_use)


class ScalingShelf(Shelf):
    """Whoever finds an entry scales it where it stands. The twin scales nothing."""

    features_scaled_in_place: Probe

    def hold(self, slot: int, content: tuple[int, ...], salt: int | None) -> Entry:
        probe, entry = self.features_scaled_in_place, super().hold(slot, content, salt)
        if entry.features is not None:
            probe.reach()
            if not probe.honest:
                probe.change()
                with torch.inference_mode():
                    entry.features.mul_(2)
        return entry


class ScalingStore(PictureStore):
    """Shared features are written to."""

    features_scaled_in_place: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.shelf, ScalingShelf, features_scaled_in_place=self.features_scaled_in_place)


class HoldingShelf(Shelf):
    """A request that ends before its source was encoded stays among its users. The twin lets go."""

    source_kept_after_cancel: Probe

    def release(self, slot: int) -> None:
        probe, entry = self.source_kept_after_cancel, self.held.get(slot)
        probe.reach()
        if probe.honest or entry is None or entry.features is not None:
            super().release(slot)
        else:
            probe.change()
            del self.held[slot]


class HoldingStore(SourceStore):
    """The source of a request that was cancelled early is held for ever."""

    source_kept_after_cancel: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.shelf, HoldingShelf, source_kept_after_cancel=self.source_kept_after_cancel)


_SOURCES = ("tiny-t5", "tiny-bart")
_SEQ2SEQ, _PICTURES = ("seq2seq",), ("pictures",)
_SEEN = (CheckName.ISOLATION, CheckName.SWAP)
_TWO = at_once(request((1,), 1), request((2,), 1))
_BESIDE = (request((1,), 1), request((1, 1), 1))

FAULTS = (
    Fault(
        name="source-hash-small",
        group="source name",
        modelled_on="sglang#2151 (an image's hash squeezed into a token id)",
        doc="pictures are found by three bits of their first token",
        mixins={"store": SmallHashStore},
        smallest={Kind.LEAK: at_once(request((1,), 1), request((9,), 1))},
        checks=_SEEN,
        models=("tiny-llava",),
        targets=_PICTURES,
    ),
    Fault(
        name="source-without-tail",
        group="source name",
        modelled_on="vllm#49975 (a part of what makes the features is left out of their key)",
        doc="an encoded source is found by all but its last token",
        mixins={"store": TaillessStore},
        smallest={Kind.LEAK: _TWO},
        checks=_SEEN,
        models=_SOURCES,
        targets=_SEQ2SEQ,
    ),
    Fault(
        name="features-by-slot",
        group="source name",
        modelled_on="llama.cpp#4194 (image embeddings kept for a slot, not for a request)",
        doc="the picture of a slot's last owner is taken for that of the next",
        mixins={"store": BySlotStore},
        smallest={Kind.LEAK: one_after_another(request((1,), 1), request((2,), 1))},
        checks=_SEEN,
        models=("tiny-llava",),
        targets=_PICTURES,
    ),
    Fault(
        name="sources-sorted",
        group="source order",
        modelled_on="batches that are sorted by length to save padding, and not put back (sentence encoders)",
        doc="sources that are encoded together are mixed up where a longer one came first",
        mixins={"runner": SortedSourceRunner},
        smallest={Kind.LEAK: at_once(request((1, 1), 1), request((2,), 1))},
        checks=(*_SEEN, CheckName.RESIDUE),
        models=_SOURCES,
        targets=_SEQ2SEQ,
    ),
    Fault(
        name="picture-of-first-row",
        group="source order",
        modelled_on="llama.cpp#4194 (an image is seen by the first sequence only)",
        doc="all rows of a forward are given the picture of the first",
        mixins={"runner": FirstPictureRunner},
        smallest={Kind.LEAK: _TWO},
        checks=_SEEN,
        models=("tiny-llava",),
        targets=_PICTURES,
    ),
    Fault(
        name="source-padding-encoded",
        group="source mask",
        modelled_on="a batch of unequal lengths without its attention mask",
        doc="a source that is encoded beside a longer one sees what it was padded with",
        mixins={"runner": UnmaskedSourceRunner},
        smallest={
            Kind.INTERFERENCE: at_once(request((1, 2), 1), request((1, 1, 1), 1)),
            Kind.LEAK: at_once(*_BESIDE, sanitize=True),
        },
        checks=(*_SEEN, CheckName.RESIDUE),
        models=_SOURCES,
        targets=_SEQ2SEQ,
    ),
    Fault(
        name="cross-mask-one-wide",
        group="source mask",
        modelled_on="a cross mask of one column too many (off by one at the end of the source)",
        doc="a decoder beside one with a longer source sees one column that is nobody's",
        mixins={"runner": WideCrossRunner},
        smallest={Kind.INTERFERENCE: at_once(*_BESIDE), Kind.LEAK: at_once(*_BESIDE, sanitize=True)},
        checks=(*_SEEN, CheckName.RESIDUE),
        models=_SOURCES,
        targets=_SEQ2SEQ,
    ),
    Fault(
        name="source-freed-in-use",
        group="source lifetime",
        modelled_on="vllm#53057 (encoder buffers recycled while somebody reads them)",
        doc="the first user that leaves frees what the others read, and the next source is put there",
        mixins={"store": UncountedStore},
        smallest={
            Kind.LEAK: schedule(request((1,), 1), request((1,), 2), Step(), request((2,), 1)),
            Kind.OWNERSHIP: schedule(request((1,), 1), request((1,), 1), Step(), request((2,), 1)),
        },
        checks=(*_SEEN, CheckName.OWNERSHIP),
        models=_SOURCES,
        targets=_SEQ2SEQ,
    ),
    Fault(
        name="features-scaled-in-place",
        group="source lifetime",
        modelled_on="shared features written to by one of their readers (source article)",
        doc="whoever finds a picture's features scales them where they stand",
        mixins={"store": ScalingStore},
        smallest={
            Kind.OWNERSHIP: one_after_another(request((1,), 1), request((1,), 1)),
            Kind.LEAK: one_after_another(request((1,), 1), request((1,), 1)),
        },
        checks=(*_SEEN, CheckName.OWNERSHIP),
        models=("tiny-llava",),
        targets=_PICTURES,
    ),
    Fault(
        name="source-kept-after-cancel",
        group="source lifetime",
        modelled_on="sglang#36926 (what an aborted request held in flight has no owner)",
        doc="a request that ends before its source was encoded stays among its users",
        mixins={"store": HoldingStore},
        smallest={Kind.OWNERSHIP: schedule(request((1, 1), 1), Step(), Cancel(0), step_tokens_max=1)},
        checks=(CheckName.OWNERSHIP,),
        models=_SOURCES,
        targets=_SEQ2SEQ,
    ),
    Fault(
        name="picture-restarts-in-chunk",
        group="source position",
        modelled_on="image features counted from the start of a chunk (chunked prefill of multimodal prompts)",
        doc="a picture that comes in chunks begins anew in each",
        mixins={"runner": RestartingPictureRunner},
        smallest={
            Kind.WRONG_ALONE: at_once(request((1, 2), 1), step_tokens_max=1),
            Kind.INTERFERENCE: at_once(request((1,), 1), request((1, 2), 1), step_tokens_max=2),
        },
        checks=(CheckName.ISOLATION,),
        models=("tiny-llava",),
        targets=_PICTURES,
    ),
)
