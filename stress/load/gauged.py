"""Gauged: what an endpoint says of itself, as data."""

from __future__ import annotations

import msgspec

HELD = (
    "slotfuzz_requests_waiting",
    "slotfuzz_requests_running",
    "slotfuzz_slots_used",
    "slotfuzz_pages_used",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
)
"""What is zero where nobody is served."""
MEMORY = ("slotfuzz_cache_bytes", "process_resident_memory_bytes")


class Gauged(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the endpoint.

    Attributes:
        looks: How often its gauges were read.
        peaks: The largest value of each gauge that should be zero when idle.
        idle_looks: Looks while nothing had been in flight for a second; the last one is after the end.
        held_idle: Gauges that were not zero then, with their largest value.
        memory_first_bytes, memory_last_bytes, memory_max_bytes: By gauge, and of the process where it is watched: the first
            value after a tenth of the run, so that what grows once and stays is not growth.
    """

    looks: int
    peaks: dict[str, float]
    idle_looks: int
    held_idle: dict[str, float]
    memory_first_bytes: dict[str, float]
    memory_last_bytes: dict[str, float]
    memory_max_bytes: dict[str, float]


def read_gauges(page: bytes) -> dict[str, float]:
    """Samples by name, those with labels added up."""
    found: dict[str, float] = {}
    for line in page.decode(errors="replace").splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#") and name:
            bare = name.partition("{")[0]
            try:
                found[bare] = found.get(bare, 0.0) + float(value)
            except ValueError:
                continue
    return found
