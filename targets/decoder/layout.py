"""Layout: the sizes and policies of a KV store, read once from a target's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from targets.models import DTYPES, Plan
from targets.protocol import Setting


@dataclass(frozen=True)
class Layout:
    """What a store is built from. Settings that a target does not have are at the defaults given here.

    Attributes:
        slots: Requests that have state at once.
        positions: The most tokens of one request.
        dtype: Of K and V.
        arithmetic: The network's dtype.
        null: Whether there is one slot more, for rows that only fill up a batch.
        reuse: What becomes of cells that change hands: "length" (nothing: the length says what counts), "zero-on-free" or
            "zero-on-allocate".
        append_max: The most tokens that one forward adds to a row of a windowed layer; its cells are a ring of
            window + append_max - 1 then. None where all cells are kept and only the mask knows of windows.
        growth: How a private cache grows: "cat" (by concatenation, a token at a time) or "buffer" (into room that doubles).
        page_size: Cells of a page.
        pages: Pages in the pool.
        page_order: Which free page is taken next, "lifo" or "fifo".
        hits: Whether pages are kept for requests that begin alike.
        grouped: Whether references are given back once a step, all together.
        unused_max: Encoded sources that are kept though nobody uses them.
        lock: Whether a thread keeps its turn to the end of its forward.
        turns: In what order threads take turns: 0 for round and round, else a seed.
        trust_bias: What is taken from the logits of tokens of low trust, in nats.
        padding_side: Where prompts of a static batch are filled up, "left" or "right".
        bucket_tokens: Prompts share a static batch if their lengths, divided by this and rounded up, are one number, and
            are filled up to the longest such; 0 where any share one and are filled up to the longest there is.
    """

    slots: int
    positions: int
    dtype: torch.dtype
    arithmetic: torch.dtype
    device: torch.device
    null: bool = False
    reuse: str = "length"
    append_max: int | None = None
    growth: str = "buffer"
    page_size: int = 16
    pages: int = 0
    page_order: str = "lifo"
    hits: bool = False
    grouped: bool = False
    unused_max: int = 0
    lock: bool = False
    turns: int = 0
    trust_bias: int = 0
    padding_side: str = "left"
    bucket_tokens: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Setting]) -> Layout:
        """As a target's settings say, its defaults filled in."""
        dtype = settings["dtype"] if settings.get("kv_dtype", "same") == "same" else settings["kv_dtype"]
        size = int(settings.get("page_size", cls.page_size))
        return cls(
            slots=int(settings["slots"]),
            positions=int(settings["context_tokens_max"]),
            dtype=DTYPES[str(dtype)],
            arithmetic=DTYPES[str(settings["dtype"])],
            device=torch.device(str(settings["device"])),
            null=bool(settings.get("pad_batch", cls.null)),
            reuse=str(settings.get("reuse", cls.reuse)),
            append_max=int(settings["ring_append_max"]) if settings.get("window") == "ring" else None,
            growth=str(settings.get("growth", cls.growth)),
            page_size=size,
            pages=int(settings.get("pool_tokens", 0)) // size,
            page_order=str(settings.get("page_order", cls.page_order)),
            hits=bool(settings.get("prefix_cache", cls.hits)),
            unused_max=int(settings.get("unused_max", cls.unused_max)),
            grouped=settings.get("references") == "grouped",
            lock=bool(settings.get("lock", cls.lock)),
            trust_bias=int(settings.get("trust_bias", cls.trust_bias)),
            turns=int(settings.get("turns", cls.turns)),
            padding_side=str(settings.get("padding_side", cls.padding_side)),
            bucket_tokens=int(settings.get("bucket_tokens", cls.bucket_tokens)),
        )

    def bucket(self, tokens: int) -> int:
        """The number of the bucket that a prompt of so many tokens is in."""
        return -(-tokens // self.bucket_tokens) if self.bucket_tokens else 0

    def width(self, tokens: int) -> int:
        """To what prompts of a static batch are filled up of which the longest has so many tokens."""
        return min(self.positions, self.bucket(tokens) * self.bucket_tokens) if self.bucket_tokens else tokens

    def room(self, window: int | None) -> int:
        """Cells that one request has in a layer with this window: all its positions, or a ring."""
        if window is None or self.append_max is None:
            return self.positions
        return min(self.positions, window + self.append_max - 1)


def plan_bytes(plan: Plan, slots: int, positions: int, dtype: torch.dtype) -> int:
    """Bytes of K and V by the usual formula, 2 · L · S · H · T · D · bytes, summed layer by layer.

    24 layers of 16 heads of 64 at 2,048 positions in float16 are 201,326,592 bytes for one request.
    """
    cells = sum(layer.heads * layer.head_size for layer in plan.layers)
    return 2 * slots * positions * cells * dtype.itemsize
