"""The fault bank: planted bugs by name, one class of bug a file; and quirks, planted likewise, which are no bugs.

Imports `targets.decoder` and `targets.protocol`; the decoder knows nothing of it.
"""

from collections.abc import Collection, Sequence

from targets.decoder import DECODERS, Parts
from targets.faults import (
    batching,
    cache,
    chunks,
    drafts,
    geometry,
    inflight,
    items,
    kept,
    lifecycle,
    memory,
    padrows,
    pages,
    pool,
    preempt,
    prefixes,
    quirks,
    recurrent,
    references,
    rows,
    sampling,
    segments,
    sessions,
    sources,
    static,
    threads,
    windows,
)
from targets.faults.bank import Fault, Probe, Quirk
from targets.protocol import BadInput, among

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *cache.FAULTS,
        *geometry.FAULTS,
        *rows.FAULTS,
        *lifecycle.FAULTS,
        *batching.FAULTS,
        *recurrent.FAULTS,
        *kept.FAULTS,
        *sampling.FAULTS,
        *pool.FAULTS,
        *references.FAULTS,
        *pages.FAULTS,
        *prefixes.FAULTS,
        *inflight.FAULTS,
        *preempt.FAULTS,
        *chunks.FAULTS,
        *windows.FAULTS,
        *padrows.FAULTS,
        *memory.FAULTS,
        *items.FAULTS,
        *sources.FAULTS,
        *threads.FAULTS,
        *static.FAULTS,
        *segments.FAULTS,
        *drafts.FAULTS,
        *sessions.FAULTS,
    )
}
QUIRKS: dict[str, Quirk] = {quirk.name: quirk for quirk in quirks.QUIRKS}
"""Kept apart: whatever tries every fault expects it to be found."""


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults by name; raises BadInput for one that is not in the bank, or is named twice."""
    _check_names(names, FAULTS)
    return tuple(FAULTS[name] for name in names)


def find_plants(names: Sequence[str]) -> tuple[Fault | Quirk, ...]:
    """The faults and quirks by name; raises BadInput as `find_faults` does."""
    everything: dict[str, Fault | Quirk] = {**FAULTS, **QUIRKS}
    _check_names(names, everything)
    return tuple(everything[name] for name in names)


def planted(plants: Sequence[Fault | Quirk], target: str = "slots") -> Parts:
    """The parts of a built-in target with all of these in them.

    Raises:
        BadInput: for one that can't be planted in this target.
    """
    parts = DECODERS[target]
    for plant in plants:
        if target not in plant.targets:
            raise BadInput("target", f"one of {', '.join(plant.targets)} for fault {plant.name}", target, "--target")
        parts = plant.plant(parts)
    return parts


def _check_names(names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise BadInput("fault", among(known, name), name, "--fault")
        if names.count(name) > 1:
            raise BadInput("fault", "named once", name, "--fault")


__all__ = ["FAULTS", "Fault", "Probe", "QUIRKS", "Quirk", "find_faults", "find_plants", "planted"]
