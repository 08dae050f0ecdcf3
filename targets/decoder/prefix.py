"""PrefixIndex: which pages hold the cells of which tokens, so that requests that begin alike can share them.

A page's key hashes its tokens with the key of the page before it, and so the whole prefix; the first one's with the salt. A
hash may collide, so whoever hits is shown the tokens, those of every page before it included: cells depend on all of them. A
page is found whole by its key, or in part by the first of its tokens, behind the page before it: the last page of an answer
that has ended is kept as far as it was filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NO_SALT = -1


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """What a page holds: its key, what the page before it holds (None for a first one), the salt, its cells' tokens."""

    key: int
    before: Entry | None
    salt: int | None
    tokens: tuple[int, ...]


def same_prefix(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries stand for the same tokens from the first one on; mostly they are one, and that is seen at once."""
    while a is not b:
        if a is None or b is None or (a.tokens, a.salt) != (b.tokens, b.salt):
            return False
        a, b = a.before, b.before
    return True


class PrefixIndex:
    """Knows pages by what they hold.

    Attributes:
        entries: By page.
        whole: By key, a page that is full.
        behind: By the key of what stands before them, all pages.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.entries: dict[int, Entry] = {}
        self.whole: dict[int, int] = {}
        self.behind: dict[int, list[int]] = {}

    def __contains__(self, page: int) -> bool:
        return page in self.entries

    def root(self, salt: int | None) -> int:
        """The key before a request's first page."""
        return hash((_NO_SALT if salt is None else salt, self.page_size))

    def key(self, parent: int, tokens: tuple[int, ...]) -> int:
        """The key of a page behind another."""
        return hash((parent, tokens))

    def parent(self, before: Entry | None, salt: int | None) -> int:
        """The key of what stands before a page."""
        return self.root(salt) if before is None else before.key

    def match(self, tokens: Sequence[int], salt: int | None) -> list[tuple[int, int]]:
        """The pages that hold the longest known prefix of `tokens`, in order: (page, cells of it that are meant)."""
        found: list[tuple[int, int]] = []
        before: Entry | None = None
        at = 0
        while at < len(tokens):
            piece = tuple(tokens[at : at + self.page_size])
            page = self.whole.get(self.key(self.parent(before, salt), piece))
            if page is not None and len(piece) == self.page_size and self.holds(page, before, salt, piece):
                found.append((page, self.page_size))
                before, at = self.entries[page], at + self.page_size
                continue
            page, cells = self.longest(before, salt, piece)
            return [*found, (page, cells)] if cells else found
        return found

    def holds(self, page: int, before: Entry | None, salt: int | None, tokens: tuple[int, ...]) -> bool:
        """Whether a page holds just these tokens behind those, of a request with that salt: a hash alone proves nothing."""
        entry = self.entries[page]
        return (entry.tokens, entry.salt) == (tokens, salt) and same_prefix(entry.before, before)

    def longest(self, before: Entry | None, salt: int | None, tokens: tuple[int, ...]) -> tuple[int, int]:
        """Of the pages behind another, the one that begins with most of `tokens`: (page, as many); (-1, 0) for none."""
        best, most = -1, 0
        for page in self.behind.get(self.parent(before, salt), ()):
            entry, count = self.entries[page], 0
            if entry.salt != salt or not same_prefix(entry.before, before):
                continue
            for ours, theirs in zip(tokens, entry.tokens, strict=False):
                if ours != theirs:
                    break
                count += 1
            if count > most:
                best, most = page, count
        return best, most

    def add(self, page: int, before: Entry | None, salt: int | None, tokens: tuple[int, ...]) -> Entry:
        """Makes a page known, unless another is that holds the same; returns what it holds."""
        parent = self.parent(before, salt)
        for other in self.behind.get(parent, ()):
            if self.holds(other, before, salt, tokens):
                return self.entries[other]
        entry = Entry(self.key(parent, tokens), before, salt, tokens)
        if page not in self.entries:
            self.entries[page] = entry
            self.behind.setdefault(parent, []).append(page)
            if len(tokens) == self.page_size:
                self.whole[entry.key] = page
        return entry

    def forget(self, page: int) -> None:
        """A page no longer holds what it did."""
        entry = self.entries.pop(page, None)
        if entry is None:
            return
        parent = self.parent(entry.before, entry.salt)
        self.behind[parent].remove(page)
        if not self.behind[parent]:
            del self.behind[parent]
        if self.whole.get(entry.key) == page:
            del self.whole[entry.key]
