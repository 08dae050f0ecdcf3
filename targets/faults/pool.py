"""Faults of the pool: which page may be taken, and whether it is found then."""

from __future__ import annotations

from targets.decoder import Layout, PageStore, Pool
from targets.faults.bank import Fault, Probe, at_once, in_front, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import CheckName, Kind, Step


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
_PAGES = ("pages",)
_FIRST, _AGAIN = request((1,), 1), request((1, 2), 1)


FAULTS = (
    Fault(
        name="freed-still-found",
        group="cache stale",
        modelled_on="nano-vllm#219 (a block is freed, and its hash entry goes on pointing to it)",
        doc="a page that nobody refers to is free, and still in the index",
        mixins={"store": FreedFoundStore},
        smallest={Kind.LEAK: one_after_another(_FIRST, request((3,), 1), _AGAIN)},
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        targets=_PAGES,
    ),
    Fault(
        name="evicted-still-found",
        group="cache stale",
        modelled_on="vllm#4764 (popped from the evictor, left in the cached map)",
        doc="an evicted page stays in the index, with what its next owner writes",
        mixins={"store": EvictedFoundStore},
        smallest={Kind.LEAK: at_once(_FIRST, request((3, 4), 1), _AGAIN, page_size=1, pool_tokens=2)},
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        targets=_PAGES,
    ),
    Fault(
        name="hit-may-be-taken",
        group="ownership",
        modelled_on="sglang#27586 (a live slot is free as well), TensorRT-LLM#12878",
        doc="a cached page that is hit stays among those that may be evicted",
        mixins={"store": ReservedStore},
        smallest={Kind.OWNERSHIP: one_after_another(_FIRST, request((1, 2), 2), page_size=1)},
        checks=_OWNERSHIP,
        targets=_PAGES,
    ),
    Fault(
        name="running-evictable",
        group="ownership",
        modelled_on="TensorRT-LLM#699 (a shared node goes while others use it)",
        doc="a shared page may be evicted once one of those that share it has left",
        mixins={"store": RunningEvictableStore},
        smallest={Kind.OWNERSHIP: schedule(_FIRST, Step(), request((1, 2), 2), _AGAIN, page_size=1)},
        checks=_OWNERSHIP,
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
