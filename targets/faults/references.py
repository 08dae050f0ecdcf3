"""Faults of references: how many refer to a page, and when that is brought up to date."""

from __future__ import annotations

from collections.abc import Sequence

from targets.decoder import Layout, PageStore, Pool
from targets.faults.bank import Fault, Probe, at_once, in_front, one_after_another, request
from targets.models import Plan
from targets.protocol import CheckName, Kind, Request, Submit


class KeptHitStore(PageStore):
    """Pages that came by a hit are not given back when their request leaves. The twin gives them back one by one."""

    hit_never_given_back: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.hit: dict[int, int] = {}

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        cells = super().attach(slot, tokens, salt)
        self.hit[slot] = len(self.tables[slot])
        return cells

    def end(self, slot: int) -> None:
        probe, hit = self.hit_never_given_back, self.hit.pop(slot, 0)
        shared, own = self.tables[slot][:hit], self.tables[slot][hit:]
        probe.reached += hit > 0
        self.put_table(slot, own)
        super().end(slot)
        if probe.honest:
            self.pool.release(reversed(shared))
        else:
            probe.change(hit > 0)


class ReferenceCountingPool(Pool):
    """Counts what may be evicted, and makes sure of the count when nobody is left, as the reported engine does."""

    counted_per_reference: Probe
    evictable = 0

    def drop(self, page: int) -> None:
        probe, last = self.counted_per_reference, self.references[page] == 1
        super().drop(page)
        if page in self.index:
            probe.reach()
            probe.change(not last and not probe.honest)
            self.evictable += last or not probe.honest

    def retain(self, page: int) -> None:
        self.evictable -= self.references[page] == 0
        super().retain(page)

    def evict(self) -> int:
        self.evictable -= 1
        return super().evict()

    def settle(self) -> None:
        super().settle()
        if not any(self.references) and self.evictable != len(self.cached):
            raise RuntimeError(f"{self.evictable} pages may be evicted, and {len(self.cached)} are cached")


class ReferenceCountingStore(PageStore):
    """Pages that may be evicted are counted once for each that gives them back. The twin counts them once."""

    counted_per_reference: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, ReferenceCountingPool, counted_per_reference=self.counted_per_reference)


class DecrementFirstPool(Pool):
    """Puts off what a step adds to references as well, and adds it when it has taken away what the step gave back."""

    grouped_decrement_first: Probe

    def retain(self, page: int) -> None:
        probe = self.grouped_decrement_first
        probe.reach()
        if probe.honest or not self.grouped:
            super().retain(page)
        else:
            probe.change()
            self.put_off().append(page)

    def settle(self) -> None:
        super().settle()
        pages = self.put_off()
        for page in pages:
            lost = self.references[page] == 0 and page not in self.cached
            if lost:
                self.references[page] = 1  # it is free as well, or somebody's
            else:
                super().retain(page)
        pages.clear()

    def put_off(self) -> list[int]:
        """Pages to which one more refers from the end of the step on."""
        pages: list[int] = self.__dict__.setdefault("retained", [])
        return pages


class DecrementFirstStore(PageStore):
    """A page whose last owner leaves in the step in which another comes to it is free. The twin adds at once."""

    grouped_decrement_first: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, DecrementFirstPool, grouped_decrement_first=self.grouped_decrement_first)


_PAGES = ("pages",)
_FIRST, _AGAIN = request((1,), 1), request((1, 2), 1)
_ANOTHER = Submit(Request(prompt=(1, 2), max_new_tokens=2, sample_of=0))
_ONE_MORE = Submit(Request(prompt=(1, 2), max_new_tokens=1, sample_of=0))

FAULTS = (
    Fault(
        name="hit-never-given-back",
        group="ownership",
        modelled_on="sglang#16067 (taken by a match, and never returned)",
        doc="the pages that a request shares by a hit are not given back when it leaves",
        mixins={"store": KeptHitStore},
        smallest={Kind.OWNERSHIP: one_after_another(_FIRST, _AGAIN)},
        checks=(CheckName.OWNERSHIP,),
        targets=_PAGES,
    ),
    Fault(
        name="counted-per-reference",
        group="ownership",
        modelled_on="sglang#35270 (shared pages counted twice as evictable, the server dies when idle)",
        doc="pages that may be evicted are counted once for each reference that is given back",
        mixins={"store": ReferenceCountingStore},
        smallest={Kind.CRASHED: one_after_another(request((1,), 2), _AGAIN, page_size=1)},
        checks=(CheckName.SURVIVAL,),
        targets=_PAGES,
    ),
    Fault(
        name="grouped-decrement-first",
        group="ownership",
        modelled_on="reference counts that are brought up to date once a step (source article)",
        doc="where references are counted once a step, what was given back is taken away before what was added",
        mixins={"store": DecrementFirstStore},
        smallest={
            Kind.OWNERSHIP: at_once(request((1, 2), 2), _ANOTHER, prefix_cache=False),
            Kind.LEAK: at_once(request((1, 2), 2), _ONE_MORE, sanitize=True),
        },
        checks=(CheckName.OWNERSHIP, CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE),
        settings={"references": "grouped"},
        targets=_PAGES,
    ),
)
