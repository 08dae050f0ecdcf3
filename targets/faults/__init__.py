"""The fault bank: planted bugs by name, one class of bug a file.

Imports `targets.decoder` and `targets.protocol`; the decoder knows nothing of it.
"""

from collections.abc import Sequence

from targets.decoder import Parts
from targets.faults import batching, cache, geometry, lifecycle, rows
from targets.faults.bank import Fault, Probe
from targets.protocol import BadInput

FAULTS: dict[str, Fault] = {
    fault.name: fault for fault in (*cache.FAULTS, *geometry.FAULTS, *rows.FAULTS, *lifecycle.FAULTS, *batching.FAULTS)
}


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults by name; raises BadInput for one that is not in the bank, or is named twice."""
    for name in names:
        if name not in FAULTS:
            raise BadInput("fault", "one of " + ", ".join(FAULTS), name, "--fault")
        if names.count(name) > 1:
            raise BadInput("fault", "named once", name, "--fault")
    return tuple(FAULTS[name] for name in names)


def planted(faults: Sequence[Fault]) -> Parts | None:
    """A decoder's parts with all of these faults in them; None for the decoder as it is."""
    parts = None
    for fault in faults:
        parts = fault.plant(parts)
    return parts


__all__ = ["FAULTS", "Fault", "Probe", "find_faults", "planted"]
