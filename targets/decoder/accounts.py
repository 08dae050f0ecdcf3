"""Accounts: what a decoder says of itself, read off its parts; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from targets.protocol import Audit, Holding, Inspection, Row, Setting

if TYPE_CHECKING:
    from targets.decoder.engine import Decoder


def audit_of(decoder: Decoder) -> Audit:
    """Who owns which slot, and how many cells of it are the owner's and visible to it."""
    retiring = {each.slot: each.submission for launch in decoder.launched for each in launch.retiring}
    row_slots = dict(zip(decoder.batch.submissions, decoder.batch.slots(), strict=True))
    owners: dict[int, list[int]] = {}
    for slot, submission in decoder.scheduler.owners.items():
        if retiring.get(slot) != submission:
            owners.setdefault(slot, []).append(submission)
    for submission, slot in row_slots.items():
        if submission not in owners.setdefault(slot, []):
            owners[slot].append(submission)
    store = decoder.store
    return Audit(
        held=tuple(_holding(decoder, slot, held) for slot, held in sorted(owners.items())),
        free=tuple(decoder.scheduler.free),
        queued=tuple(decoder.scheduler.queue),
        slots=store.layout.slots,
        retiring=tuple(_holding(decoder, slot, [owner]) for slot, owner in sorted(retiring.items()) if slot is not None),
        pages=store.account(),
        allocated=store.allocated(),
        shelved=store.shelved(),
        counts={
            **decoder.counts,
            **decoder.planner.counts,
            **decoder.drafter.counts,
            **store.counts,
            **decoder.runner.counts,
        },
    )


def inspection_of(decoder: Decoder) -> Inspection:
    """The forwards of the last step, as they were run, and the cells of everybody who has a row."""
    return Inspection(
        forwards=tuple(
            tuple(
                Row(feed.submission, start, tuple(feed.tokens), feed.slot) for feed, start in zip(feeds, starts, strict=True)
            )
            for feeds, starts in decoder.runner.forwards
        ),
        cells={
            submission: decoder.store.seen(slot)
            for submission, slot in zip(decoder.batch.submissions, decoder.batch.slots(), strict=True)
        },
    )


def _holding(decoder: Decoder, slot: int, owners: list[int]) -> Holding:
    """What one slot holds."""
    store, cells = decoder.store, decoder.store.lengths[slot]
    storage = store.storage(slot) if store.tags else ()
    if store.tags:
        storage = (*storage, *decoder.states.storage(slot, 2 * len(decoder.plan.layers)))  # behind all K and V
    return Holding(slot, tuple(sorted(owners)), cells, cells, storage, store.pages_of(slot))


def counted(settings: Mapping[str, Setting]) -> list[str]:
    """What a decoder with these settings counts, so that what it never did shows as zero."""
    names = {
        "cancelled_in_flight": bool(settings["pipelined"]),
        "discarded": bool(settings["pipelined"]),
        "preempted": "pool_tokens" in settings,
        "ring_wrapped": settings.get("window") == "ring",
        "padded": bool(settings.get("pad_batch")),
        **dict.fromkeys(("drafted", "accepted", "rejected", "rolled_back"), bool(settings.get("speculate"))),
        "handed_over": settings.get("lock") is False,
    }
    return [name for name, counted in names.items() if counted]
