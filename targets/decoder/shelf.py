"""Shelf: what an encoder made of a source, by its content, for all who have that source in common.

An entry is held by the slots that use it, and nobody writes to it. Entries that nobody uses any more are kept for those who
come with the same source and salt; of more than there is room for, the one unused for longest goes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import torch

from targets.protocol import Shelved


@dataclass(eq=False)
class Entry:
    """One source.

    Attributes:
        content: Token ids, as many as the encoder takes.
        features: What the encoder made of them, [N, C]; None until somebody's forward has run it.
        users: The slots that use it.
        number: How many entries were made before it.
    """

    name: str
    content: tuple[int, ...]
    number: int
    features: torch.Tensor | None = None
    users: list[int] = field(default_factory=list)

    def made(self) -> torch.Tensor:
        """What the encoder made of it, which is there by now."""
        assert self.features is not None, "a source is encoded before anybody looks at it"
        return self.features


class Shelf:
    """Entries by name, and by the slot that holds each.

    Attributes:
        entries: Those that can be found; the ones that nobody uses stand in the order in which they were left.
        held: By slot.
        unused_max: So many that nobody uses are kept.
    """

    def __init__(self, unused_max: int) -> None:
        self.entries: OrderedDict[str, Entry] = OrderedDict()
        self.held: dict[int, Entry] = {}
        self.unused_max = unused_max
        self.counts = Counter({"sources_found": 0, "sources_dropped": 0})
        self.made = 0

    def name(self, content: tuple[int, ...], salt: int | None) -> str:
        """A source's name: a hash of all of its content, and of the salt."""
        return hashlib.sha256(repr((content, salt)).encode()).hexdigest()[:16]

    def hold(self, slot: int, content: tuple[int, ...], salt: int | None) -> Entry:
        """Gives a slot the entry of a source, a new one where nobody has brought it before."""
        name = self.name(content, salt)
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry(name, content, self.made)
            self.made += 1
        self.counts["sources_found"] += entry.features is not None
        entry.users.append(slot)
        self.held[slot] = entry
        return entry

    def put(self, entry: Entry, features: torch.Tensor) -> None:
        """An entry's source has been encoded."""
        entry.features = features

    def release(self, slot: int) -> None:
        """A slot's owner leaves."""
        entry = self.held.pop(slot, None)
        if entry is None:
            return
        entry.users.remove(slot)
        if entry.users:
            return
        self.entries.move_to_end(entry.name)
        unused = [each for each in self.entries.values() if not each.users]
        for each in unused:
            if each.features is None or len(unused) > self.unused_max:
                unused = [other for other in unused if other is not each]
                self.drop(each)

    def drop(self, entry: Entry) -> None:
        """An entry that nobody uses can't be found any more, and its memory goes."""
        del self.entries[entry.name]
        self.counts["sources_dropped"] += 1

    def used_bytes(self) -> int:
        """Of what is in use; what is only kept is a choice, and no growth."""
        every = {id(entry): entry for entry in (*self.entries.values(), *self.held.values()) if entry.users}
        return sum(entry.features.nbytes for entry in every.values() if entry.features is not None)

    def account(self) -> tuple[Shelved, ...]:
        """Each entry, who uses it and a digest of its bits."""
        return tuple(
            Shelved(f"{entry.name} {entry.number}", tuple(sorted(entry.users)), _digest(entry.features))
            for entry in self.entries.values()
        )


def _digest(features: torch.Tensor | None) -> str:
    if features is None:
        return ""
    bits = features.contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.sha256(bits).hexdigest()[:16]
