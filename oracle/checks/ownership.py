"""Ownership: one owner a slot, nothing held by the dead, nothing lost, every length the owner's own, no memory shared.

Where there are pages, each is free, cached or referred to, and as often as tables name it. Memory that is allocated does not
grow from one idle moment to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from oracle.case import Case
from oracle.finding import Finding, Report
from targets.protocol import (
    Admitted,
    Asked,
    Audit,
    Audited,
    CheckName,
    Emitted,
    Event,
    Finished,
    Freed,
    Holding,
    Kind,
    Pages,
    Preempted,
    Prefilled,
    Refused,
    Request,
    Schedule,
    Stepped,
    Submit,
    Trace,
)

ENDS = (Finished, Refused)
RETIRING_STEPS_MAX = 1
"""A forward that was in flight when a request ended has landed by the end of the next step."""
Complaint = tuple[int | None, str]
"""A submission, where one is concerned, and a sentence."""


def ownership(case: Case) -> Generator[Schedule, Trace, Report]:
    """OWNERSHIP at the first account that does not add up with what was reported. Asks for no variants."""
    for index, submission, what in _complaints(case):
        finding = Finding(kind=Kind.OWNERSHIP, check=CheckName.OWNERSHIP, what=what, submission=submission, event=index)
        return Report(findings=[finding])
    return Report()
    yield


def _complaints(case: Case) -> Iterator[tuple[int, int | None, str]]:
    """As (event, submission, sentence): the trace is followed, and every account is held against it."""
    books = _Books(case.requests)
    coming = iter(range(len(case.requests)))
    for index, event in enumerate(case.trace):
        if isinstance(event, Asked):
            if event.op < len(case.schedule.ops) and isinstance(case.schedule.ops[event.op], Submit):
                books.waiting.append(next(coming))
        elif isinstance(event, Audited):
            for submission, what in _amiss(event.audit, books):
                yield index, submission, what
        else:
            books.enter(event)


@dataclass
class _Books:
    """Who has what, as far as the events say.

    Attributes:
        waiting: Submissions that were handed in or preempted, and not admitted since.
        slots: By running submission, its slot.
        cells: By running submission, as many of its tokens as went through the network or were there already.
        tokens: By submission, the tokens of its answer.
        owed: By slot whose owner has ended and that was not said to be free: that owner, and steps since.
        idle_bytes: As many as were allocated at the first idle moment.
        digests: Of what is shared and only read, by name, as the last account had them.
    """

    requests: tuple[Request, ...]
    waiting: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    cells: dict[int, int] = field(default_factory=dict)
    tokens: Counter[int] = field(default_factory=Counter)
    owed: dict[int, tuple[int, int]] = field(default_factory=dict)
    idle_bytes: int | None = None
    digests: dict[str, str] = field(default_factory=dict)

    def enter(self, event: Event) -> None:
        """One event."""
        if isinstance(event, Stepped):
            self.owed = {slot: (who, steps + 1) for slot, (who, steps) in self.owed.items()}
        elif isinstance(event, Admitted):
            self.slots[event.submission], self.cells[event.submission] = event.slot, event.cached
            self.owed.pop(event.slot, None)
            self.stop_waiting(event.submission)
        elif isinstance(event, Prefilled):
            self.cells[event.submission] = event.cells
        elif isinstance(event, Emitted):
            self.tokens[event.submission] += 1
            if event.submission < len(self.requests):
                # The token itself has not been through the network yet.
                self.cells[event.submission] = (
                    len(self.requests[event.submission].prompt) + self.tokens[event.submission] - 1
                )
        elif isinstance(event, Preempted):
            self.slots.pop(event.submission, None)
            self.waiting.append(event.submission)
        elif isinstance(event, Freed):
            self.owed.pop(event.slot, None)
        elif isinstance(event, ENDS):
            slot = self.slots.pop(event.submission, None)
            if slot is not None:
                self.owed[slot] = (event.submission, 0)
            self.stop_waiting(event.submission)

    def stop_waiting(self, submission: int) -> None:
        """It is admitted, or has ended."""
        if submission in self.waiting:
            self.waiting.remove(submission)

    def room_of(self, submission: int) -> int:
        """The most cells that a request may ever have."""
        request = self.requests[submission]
        return len(request.prompt) + request.max_new_tokens


def _amiss(audit: Audit, books: _Books) -> Iterator[Complaint]:
    held, retiring = ({holding.slot for holding in holdings} for holdings in (audit.held, audit.retiring))
    free = set(audit.free)
    if len(free) != len(audit.free):
        twice = next(slot for slot in audit.free if audit.free.count(slot) > 1)
        yield None, f"slot {twice} is free twice"
    for slot in (held | retiring) & free:
        yield None, f"slot {slot} is held and free"
    if len(held | free | retiring) != audit.slots:
        yield None, f"{len(held | retiring)} slots are held and {len(free)} free, of {audit.slots}"
    owned: dict[int, int] = {}
    for holding in audit.held:
        if len(holding.owners) != 1:
            yield None, f"slot {holding.slot} has {len(holding.owners)} owners: {list(holding.owners)}"
            continue
        owner = holding.owners[0]
        if owner not in books.slots:
            yield owner, f"slot {holding.slot} is held by request #{owner}, which is not running"
            continue
        owned[owner] = holding.slot
        cells = books.cells.get(owner, 0)
        if not holding.cells == holding.visible == cells:
            seen = f"{holding.cells} cells, {holding.visible} visible"
            yield owner, f"slot {holding.slot} of request #{owner} has {seen}, but {cells} of its tokens were run"
    for submission, slot in books.slots.items():
        if owned.get(submission) != slot:
            yield submission, f"request #{submission} was given slot {slot} but holds {owned.get(submission, 'none')}"
    yield from _retiring(audit, books)
    yield from _overlaps(audit)
    if audit.pages is not None:
        yield from _pages(audit.pages, (*audit.held, *audit.retiring), books)
    yield from _shelved(audit, books)
    if sorted(audit.queued) != sorted(books.waiting):
        yield None, f"requests {sorted(audit.queued)} are queued, but {sorted(books.waiting)} are waiting"
    yield from _growth(audit, books)


def _retiring(audit: Audit, books: _Books) -> Iterator[Complaint]:
    """What an ended request may hold: only what it had, and only until the forward that was in flight has landed."""
    for holding in audit.retiring:
        owed = books.owed.get(holding.slot)
        owner = holding.owners[0] if holding.owners else None
        if owed is None:
            yield owner, f"slot {holding.slot} is kept for a forward in flight, but nobody who had it has ended"
        elif holding.owners != owed[:1]:
            yield owner, f"slot {holding.slot} is kept for {list(holding.owners)}, but it was request #{owed[0]}'s"
        elif owed[1] > RETIRING_STEPS_MAX:
            yield owner, f"slot {holding.slot} is kept for a forward in flight {owed[1]} steps after its owner's end"


def _pages(pages: Pages, holdings: tuple[Holding, ...], books: _Books) -> Iterator[Complaint]:
    """Every page in one state, and as many references as there are."""
    states = [*pages.free, *pages.cached, *(page for page, _ in pages.references)]
    for page, times in Counter(states).items():
        if times > 1:
            yield None, f"page {page} is in {times} of the states free, cached and referred to, or in one twice"
            return
    if len(states) != pages.total or not set(states) <= set(range(pages.total)):
        held = len(pages.references)
        counted = f"{len(pages.free)} pages are free, {len(pages.cached)} cached and {held} referred to"
        yield None, f"{counted}, of {pages.total}"
    named = Counter(page for holding in holdings for page in holding.pages)
    told = dict(pages.references)
    for page in sorted({*named, *told}):
        if named[page] != told.get(page, 0):
            yield None, f"page {page} is in {named[page]} tables and counts {told.get(page, 0)} references"
            return
    for holding in holdings:
        owner = holding.owners[0] if holding.owners else None
        least = -(-holding.cells // pages.size)
        most = -(-books.room_of(owner) // pages.size) if owner is not None and owner < len(books.requests) else least
        if not least <= len(holding.pages) <= most:
            room = f"{len(holding.pages)} pages of {pages.size} for {holding.cells} cells"
            yield owner, f"slot {holding.slot} of request #{owner} has {room}"


def _shelved(audit: Audit, books: _Books) -> Iterator[Complaint]:
    """What is shared and only read keeps its bits, and those use it, once each, who have a slot."""
    here = Counter(holding.slot for holding in (*audit.held, *audit.retiring))
    for kept in audit.shelved:
        before = books.digests.get(kept.name) or kept.digest
        if kept.digest != before:
            yield None, f"shared {kept.name} was {before}, and is {kept.digest}: somebody wrote to it"
        for slot, times in (Counter(kept.slots) - here).items():
            yield None, f"shared {kept.name} is used by slot {slot}, {times} times more often than that is held"
    books.digests = {kept.name: kept.digest for kept in audit.shelved}


def _growth(audit: Audit, books: _Books) -> Iterator[Complaint]:
    """Whether more is allocated than at an earlier moment when nothing ran or waited either."""
    if audit.allocated is None or books.slots or books.waiting or audit.held or audit.retiring:
        return
    if books.idle_bytes is None:
        books.idle_bytes = audit.allocated
    elif audit.allocated > books.idle_bytes:
        yield None, f"{audit.allocated} bytes are allocated where nobody is left, and there were {books.idle_bytes} before"


def _overlaps(audit: Audit) -> Iterator[Complaint]:
    """The first two requests whose memory overlaps, where the target says in what memory they lie."""
    ranges = sorted((*place, holding.owners) for holding in (*audit.held, *audit.retiring) for place in holding.storage)
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
