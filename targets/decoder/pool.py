"""Pool: who refers to which page, and which page is next.

A page is in one of three states: free; *cached*, when nobody refers to it and the prefix index knows what it holds; or
referred to by so many. A new page is a free one, else the cached one that has been so for longest, whose content is then
forgotten before anybody can find it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

from targets.decoder.prefix import PrefixIndex


class Pool:
    """The pages of a store by number.

    Attributes:
        references: How many refer to each page.
        free: In the order in which they became so; the next is taken from the right (lifo) or the left (fifo).
        cached: The one that has been cached for longest comes first.
        emptied: Called with a page that becomes free.
    """

    def __init__(self, pages: int, order: str, grouped: bool, index: PrefixIndex, emptied: Callable[[int], None]) -> None:
        self.order = order
        self.grouped = grouped
        self.index = index
        self.emptied = emptied
        self.references = [0] * pages
        self.free: deque[int] = deque(reversed(range(pages)) if order == "lifo" else range(pages))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.given_back: list[int] = []
        self.counts: Counter[str] = Counter()

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return len(self.free) + len(self.cached)

    def take(self) -> int | None:
        """A page that its taker alone refers to; None where there is none."""
        if not self.available:
            self.settle()
        if self.free:
            page = self.free.pop() if self.order == "lifo" else self.free.popleft()
        elif self.cached:
            page = self.evict()
        else:
            return None
        self.references[page] = 1
        return page

    def evict(self) -> int:
        """The page that has been cached for longest; it is no longer found."""
        page, _ = self.cached.popitem(last=False)
        self.index.forget(page)
        self.emptied(page)
        self.counts["evicted"] += 1
        return page

    def retain(self, page: int) -> None:
        """One more refers to a page."""
        if self.references[page] == 0:
            del self.cached[page]
        self.references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One less refers to each of these pages: at once, or when the step is over."""
        if self.grouped:
            self.given_back += pages
        else:
            for page in pages:
                self.drop(page)

    def settle(self) -> None:
        """What was given back in this step is so from now on."""
        given_back, self.given_back = self.given_back, []
        for page in given_back:
            self.drop(page)

    def drop(self, page: int) -> None:
        """One less refers to a page; the last one leaves it cached, or free."""
        self.references[page] -= 1
        if self.references[page] == 0:
            if page in self.index:
                self.cached[page] = None
            else:
                self.free.append(page)
                self.emptied(page)
