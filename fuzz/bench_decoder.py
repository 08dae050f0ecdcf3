"""Bench decoder: runs the parts of `fuzz.decoder_bench` on each model, one table a part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from fuzz.decoder_bench.caching import outside_forwards, with_and_without_cache
from fuzz.decoder_bench.claims import Claim
from fuzz.decoder_bench.measure import Effort, Table
from fuzz.decoder_bench.rivals import against_rivals
from fuzz.decoder_bench.stores import by_page_size, by_reuse, by_store
from fuzz.decoder_bench.throughput import by_batch_size, by_prefill, by_spread
from fuzz.decoder_bench.variants import PAGES, REUSE, STORES, Opened, Variant
from targets.protocol import Factory
from targets.registry import TargetSpec, build

MODELS = ("tiny", "random-50m")

OF_SLOTS: dict[str, Callable[[Factory, str, Effort], Table]] = {
    "batch": by_batch_size,
    "rivals": against_rivals,
    "outside": outside_forwards,
    "cache": with_and_without_cache,
    "spread": by_spread,
    "prefill": by_prefill,
}
"""The parts that measure the target `slots`."""

OF_VARIANTS: dict[str, tuple[Callable[[Sequence[Opened], str, Effort], Table], tuple[Variant, ...]]] = {
    "stores": (by_store, STORES),
    "reuse": (by_reuse, REUSE),
    "pages": (by_page_size, PAGES),
}
"""The parts that compare variants."""

PARTS = (*OF_SLOTS, *OF_VARIANTS)


class Figures(msgspec.Struct, frozen=True):
    """What one model gave, as it is written to a file."""

    model: str
    identity: str
    threads: int
    clock: str
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]


def factories(model: str) -> Callable[[str], Factory]:
    """The factory of each target on one model, by the target's name; each is built once.

    Raises (when it is called):
        BadInput: for an unknown model or target.
    """
    return functools.cache(lambda target: build(TargetSpec(target=target, model=model)))


def measured(factory_of: Callable[[str], Factory], model: str, parts: Collection[str], effort: Effort) -> Iterator[Table]:
    """The parts asked for, on one model, each told as soon as it is measured."""
    for part in PARTS:
        if part not in parts:
            continue
        if part in OF_SLOTS:
            yield OF_SLOTS[part](factory_of("slots"), model, effort)
        else:
            measure, variants = OF_VARIANTS[part]
            yield measure([Opened(name, factory_of(target), settings) for name, target, settings in variants], model, effort)
