"""Faults of the pool: who refers to a page, when it goes back, and whether it may be taken."""

from __future__ import annotations

from collections.abc import Sequence

from targets.decoder import Layout, PageStore, Pool
from targets.faults.bank import Fault, Probe, at_once, in_front, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import CheckName, Kind, Request, Step, Submit


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


class ForgetfulPool(Pool):
    """Finds a page that is free and still in the index again. Mixed in by `FreedFoundStore`."""

    freed_still_found: Probe

    def retain(self, page: int) -> None:
        if page in self.free:
            self.free.remove(page)
            self.references[page] = 1
        else:
            super().retain(page)

    def drop(self, page: int) -> None:
        probe = self.freed_still_found
        probe.reach()
        if probe.honest or self.references[page] > 1:
            super().drop(page)
        else:
            probe.change(page in self.index)
            self.references[page] = 0
            self.free.append(page)


class FreedFoundStore(PageStore):
    """A page that nobody refers to is free at once, and the index goes on finding it. The twin keeps it as cached."""

    freed_still_found: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, ForgetfulPool, freed_still_found=self.freed_still_found)


class StalePool(Pool):
    """Evicts a page and leaves it in the index. Mixed in by `EvictedFoundStore`."""

    evicted_still_found: Probe

    def evict(self) -> int:
        probe = self.evicted_still_found
        probe.reach()
        if probe.honest:
            return super().evict()
        page, _ = self.cached.popitem(last=False)
        probe.change()
        self.counts["evicted"] += 1
        return page


class EvictedFoundStore(PageStore):
    """A page that is evicted is found as before, with its next owner's cells. The twin forgets it."""

    evicted_still_found: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, StalePool, evicted_still_found=self.evicted_still_found)


class ReservedPool(Pool):
    """Leaves a page that is hit among those that may be taken. Mixed in by `ReservedStore`."""

    hit_may_be_taken: Probe

    def retain(self, page: int) -> None:
        probe = self.hit_may_be_taken
        probe.reach()
        if probe.honest or self.references[page]:
            super().retain(page)
        else:
            probe.change()
            self.references[page] = 1


class ReservedStore(PageStore):
    """A cached page that is hit stays in the pool, to be evicted under its reader. The twin takes it out."""

    hit_may_be_taken: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, ReservedPool, hit_may_be_taken=self.hit_may_be_taken)


class RunningEvictablePool(Pool):
    """Lets the first of two that share a page, when it leaves, put the page up for eviction."""

    running_evictable: Probe

    def drop(self, page: int) -> None:
        probe = self.running_evictable
        super().drop(page)
        if self.references[page] > 0 and page in self.index:
            probe.reach()
            if not probe.honest:
                probe.change()
                self.cached[page] = None


class RunningEvictableStore(PageStore):
    """A page may be evicted once one of those that share it has left, whoever still runs. The twin waits for the last."""

    running_evictable: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, RunningEvictablePool, running_evictable=self.running_evictable)


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
            self.put_off().append(page)

    def settle(self) -> None:
        super().settle()
        pages = self.put_off()
        for page in pages:
            lost = self.references[page] == 0 and page not in self.cached
            self.grouped_decrement_first.change(lost)
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


class ParentFirstPool(Pool):
    """Fails where a page goes while others are known behind it. Mixed in by `ParentFirstStore`."""

    def evict(self) -> int:
        page = next(iter(self.cached))
        if self.index.behind.get(self.index.entries[page].key):
            raise RuntimeError(f"page {page} goes, and others are known behind it")
        return super().evict()


class ParentFirstStore(PageStore):
    """A request gives back its first page first, which is then evicted before those behind it. The twin ends with it."""

    parent_evicted_first: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.pool, ParentFirstPool)

    def end(self, slot: int) -> None:
        probe = self.parent_evicted_first
        probe.reach()
        if not probe.honest:
            probe.change(len(self.tables[slot]) > 1)
            self.tables[slot] = self.tables[slot][::-1]
        super().end(slot)


_OWNERSHIP = (CheckName.OWNERSHIP,)
_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE, CheckName.ISOLATION)
_PAGES = ("pages",)
_FIRST, _AGAIN = request((1,), 1), request((1, 2), 1)


def _another(prompt: tuple[int, ...], new: int, of: int = 0) -> Submit:
    """One more answer to the prompt of an earlier submission."""
    return Submit(Request(prompt=prompt, max_new_tokens=new, sample_of=of))


FAULTS = (
    Fault(
        name="hit-never-given-back",
        group="ownership",
        modelled_on="sglang#16067 (taken by a match, and never returned)",
        doc="the pages that a request shares by a hit are not given back when it leaves",
        mixins={"store": KeptHitStore},
        smallest={Kind.OWNERSHIP: one_after_another(_FIRST, _AGAIN)},
        checks=_OWNERSHIP,
        targets=_PAGES,
    ),
    Fault(
        name="freed-still-found",
        group="cache stale",
        modelled_on="nano-vllm#219 (a block is freed, and its hash entry goes on pointing to it)",
        doc="a page that nobody refers to is free, and still in the index",
        mixins={"store": FreedFoundStore},
        smallest={Kind.LEAK: one_after_another(_FIRST, request((3,), 1), _AGAIN)},
        checks=_LEAKS,
        targets=_PAGES,
    ),
    Fault(
        name="evicted-still-found",
        group="cache stale",
        modelled_on="vllm#4764 (popped from the evictor, left in the cached map)",
        doc="an evicted page stays in the index, with what its next owner writes",
        mixins={"store": EvictedFoundStore},
        smallest={Kind.LEAK: at_once(_FIRST, request((3, 4), 1), _AGAIN, page_size=1, pool_tokens=2)},
        checks=_LEAKS,
        targets=_PAGES,
    ),
    Fault(
        name="hit-may-be-taken",
        group="ownership",
        modelled_on="sglang#27586 (a live slot is free as well), TensorRT-LLM#12878",
        doc="a cached page that is hit stays among those that may be evicted",
        mixins={"store": ReservedStore},
        smallest={Kind.OWNERSHIP: one_after_another(_FIRST, request((1, 2), 2), page_size=1)},
        checks=(*_OWNERSHIP, *_LEAKS),
        targets=_PAGES,
    ),
    Fault(
        name="running-evictable",
        group="ownership",
        modelled_on="TensorRT-LLM#699 (a shared node goes while others use it)",
        doc="a shared page may be evicted once one of those that share it has left",
        mixins={"store": RunningEvictableStore},
        smallest={Kind.OWNERSHIP: schedule(_FIRST, Step(), request((1, 2), 2), _AGAIN, page_size=1)},
        checks=(*_OWNERSHIP, *_LEAKS),
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
            Kind.OWNERSHIP: schedule(request((1, 2), 2), Step(), _another((1, 2), 2), prefix_cache=False),
        },
        checks=(*_OWNERSHIP, *_LEAKS),
        settings={"references": "grouped"},
        targets=_PAGES,
    ),
    Fault(
        name="parent-evicted-first",
        group="cache stale",
        modelled_on="TensorRT-LLM#699 (a node is freed that still has children)",
        doc="a request's first page is evicted before those that are found only behind it",
        mixins={"store": ParentFirstStore},
        smallest={Kind.CRASHED: at_once(_AGAIN, request((3,), 1), page_size=1, pool_tokens=2)},
        checks=(CheckName.SURVIVAL,),
        targets=_PAGES,
    ),
)
