"""Ownership: one owner a slot, nothing held by the dead, nothing lost, every length the owner's own, no memory shared."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from oracle.case import Case
from oracle.finding import Finding, Report
from targets.protocol import (
    Admitted,
    Asked,
    Audit,
    Audited,
    CheckName,
    Emitted,
    Finished,
    Kind,
    Refused,
    Schedule,
    Submit,
    Trace,
)

ENDS = (Finished, Refused)


def ownership(case: Case) -> Generator[Schedule, Trace, Report]:
    """OWNERSHIP at the first account that does not add up with what was reported. Asks for no variants."""
    for index, submission, what in _complaints(case):
        finding = Finding(kind=Kind.OWNERSHIP, check=CheckName.OWNERSHIP, what=what, submission=submission, event=index)
        return Report(findings=[finding])
    return Report()
    yield


def _complaints(case: Case) -> Iterator[tuple[int, int | None, str]]:
    """As (event, submission, sentence): the trace is followed, and every account is held against it."""
    waiting: list[int] = []
    slots: dict[int, int] = {}
    tokens: dict[int, int] = {}
    coming = iter(range(len(case.requests)))
    for index, event in enumerate(case.trace):
        if isinstance(event, Asked):
            if event.op < len(case.schedule.ops) and isinstance(case.schedule.ops[event.op], Submit):
                waiting.append(next(coming))
        elif isinstance(event, Admitted):
            slots[event.submission] = event.slot
            if event.submission in waiting:
                waiting.remove(event.submission)
        elif isinstance(event, Emitted):
            tokens[event.submission] = tokens.get(event.submission, 0) + 1
        elif isinstance(event, ENDS):
            slots.pop(event.submission, None)
            if event.submission in waiting:
                waiting.remove(event.submission)
        elif isinstance(event, Audited):
            for submission, what in _amiss(case, event.audit, waiting, slots, tokens):
                yield index, submission, what


def _amiss(
    case: Case, audit: Audit, waiting: list[int], slots: dict[int, int], tokens: dict[int, int]
) -> Iterator[tuple[int | None, str]]:
    held = {holding.slot for holding in audit.held}
    if len(set(audit.free)) != len(audit.free):
        twice = next(slot for slot in audit.free if audit.free.count(slot) > 1)
        yield None, f"slot {twice} is free twice"
    for slot in held & set(audit.free):
        yield None, f"slot {slot} is held and free"
    if len(held | set(audit.free)) != audit.slots:
        yield None, f"{len(held)} slots are held and {len(set(audit.free))} free, of {audit.slots}"
    owned: dict[int, int] = {}
    for holding in audit.held:
        if len(holding.owners) != 1:
            yield None, f"slot {holding.slot} has {len(holding.owners)} owners: {list(holding.owners)}"
            continue
        owner = holding.owners[0]
        if owner not in slots:
            yield owner, f"slot {holding.slot} is held by request #{owner}, which is not running"
            continue
        owned[owner] = holding.slot
        count = tokens.get(owner, 0)
        # The last token has not been through the network yet; before the first, nothing has.
        cells = len(case.requests[owner].prompt) + count - 1 if count else 0
        if not holding.cells == holding.visible == cells:
            seen = f"{holding.cells} cells, {holding.visible} visible"
            yield owner, f"slot {holding.slot} of request #{owner} has {seen}, but {cells} of its tokens were run"
    for submission, slot in slots.items():
        if owned.get(submission) != slot:
            yield submission, f"request #{submission} was given slot {slot} but holds {owned.get(submission, 'none')}"
    yield from _overlaps(audit)
    if sorted(audit.queued) != sorted(waiting):
        yield None, f"requests {sorted(audit.queued)} are queued, but {sorted(waiting)} are waiting"


def _overlaps(audit: Audit) -> Iterator[tuple[int | None, str]]:
    """The first two requests whose memory overlaps, where the target says in what memory they lie."""
    ranges = sorted((*place, holding.owners) for holding in audit.held for place in holding.storage)
    before: tuple[int, int, tuple[int, ...]] | None = None  # allocation, end, owners
    for allocation, first, end, owners in ranges:
        if before is not None and before[0] == allocation and first < min(end, before[1]) and owners != before[2]:
            everyone = sorted({*owners, *before[2]})
            names = " and ".join(f"#{owner}" for owner in everyone)
            shared = f"{min(end, before[1]) - first} bytes from byte {first} of allocation {allocation}"
            yield everyone[-1], f"the K and V of requests {names} overlap: {shared}"
            return
        if before is None or before[0] != allocation or end > before[1]:
            before = (allocation, end, owners)
