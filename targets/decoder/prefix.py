"""PrefixIndex: which pages hold the cells of which tokens, so that requests that begin alike can share them.

A page's key hashes its tokens with the key of the page before it, and so the whole prefix; the first one's with the salt. A
hash may collide, so whoever hits is shown the tokens. A page is found whole by its key, or in part by the first of its
tokens, under the page before it: the last page of an answer that has ended is kept as far as it was filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_NO_SALT = -1


class Entry(NamedTuple):
    """What a page holds: its own key, that of the page before it, the salt, the tokens of its cells."""

    key: int
    parent: int
    salt: int | None
    tokens: tuple[int, ...]


class PrefixIndex:
    """Knows pages by what they hold.

    Attributes:
        entries: By page.
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

    def match(self, tokens: Sequence[int], salt: int | None) -> list[tuple[int, int]]:
        """The pages that hold the longest known prefix of `tokens`, in order: (page, cells of it that are meant)."""
        found: list[tuple[int, int]] = []
        parent, at = self.root(salt), 0
        while at < len(tokens):
            piece = tuple(tokens[at : at + self.page_size])
            page = self.whole.get(self.key(parent, piece))
            if page is not None and len(piece) == self.page_size and self.holds(page, parent, salt, piece):
                found.append((page, self.page_size))
                parent, at = self.entries[page].key, at + self.page_size
                continue
            page, cells = self.longest(parent, salt, piece)
            return [*found, (page, cells)] if cells else found
        return found

    def holds(self, page: int, parent: int, salt: int | None, tokens: tuple[int, ...]) -> bool:
        """Whether a page holds just these tokens, of a request with that salt: a hash alone proves nothing."""
        entry = self.entries[page]
        return (entry.tokens, entry.parent, entry.salt) == (tokens, parent, salt)

    def longest(self, parent: int, salt: int | None, tokens: tuple[int, ...]) -> tuple[int, int]:
        """Of the pages behind another, the one that begins with most of `tokens`: (page, as many); (-1, 0) for none."""
        best, most = -1, 0
        for page in self.behind.get(parent, ()):
            entry, count = self.entries[page], 0
            if entry.salt != salt:
                continue
            for ours, theirs in zip(tokens, entry.tokens, strict=False):
                if ours != theirs:
                    break
                count += 1
            if count > most:
                best, most = page, count
        return best, most

    def add(self, page: int, parent: int, salt: int | None, tokens: tuple[int, ...]) -> int:
        """Makes a page known, unless another is that holds the same; returns the key of what it holds."""
        key = self.key(parent, tokens)
        known = any(self.entries[other].tokens == tokens for other in self.behind.get(parent, ()))
        if not known and page not in self.entries:
            self.entries[page] = Entry(key, parent, salt, tokens)
            self.behind.setdefault(parent, []).append(page)
            if len(tokens) == self.page_size:
                self.whole[key] = page
        return key

    def forget(self, page: int) -> None:
        """A page no longer holds what it did."""
        entry = self.entries.pop(page, None)
        if entry is None:
            return
        self.behind[entry.parent].remove(page)
        if not self.behind[entry.parent]:
            del self.behind[entry.parent]
        if self.whole.get(entry.key) == page:
            del self.whole[entry.key]
