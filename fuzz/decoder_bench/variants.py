"""Variants: the stores and settings that the bench compares, each a target and its settings. To compare one more, add it."""

from __future__ import annotations

from typing import NamedTuple

from targets.protocol import Factory, Setting


class Variant(NamedTuple):
    """One entry of a comparison: what it is called in the table, the target's name, and its settings."""

    name: str
    target: str
    settings: dict[str, Setting]


class Opened(NamedTuple):
    """A variant with its factory."""

    name: str
    factory: Factory
    settings: dict[str, Setting]


STORES = (
    Variant("slots", "slots", {}),
    Variant("pages", "pages", {"prefix_cache": False}),
    Variant("pages, shared", "pages", {}),
    Variant("private", "private", {}),
    Variant("private, cat", "private", {"growth": "cat"}),
)
"""Ways to keep K and V. The first is what the others are compared with."""

REUSE = (
    Variant("length only", "slots", {}),
    Variant("zero on free", "slots", {"reuse": "zero-on-free"}),
    Variant("zero on allocate", "slots", {"reuse": "zero-on-allocate"}),
    Variant("fresh allocation", "private", {}),
)
"""What happens to a slot that gets a new owner. The first is what the others are compared with."""

PAGES = (
    Variant("16", "pages", {}),
    *(Variant(str(size), "pages", {"page_size": size}) for size in (1, 4, 8, 32)),
    Variant("no pages", "slots", {}),
)
"""Page sizes. The first is what the others are compared with."""
