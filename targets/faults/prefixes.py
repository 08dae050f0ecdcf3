"""Faults of the prefix cache: what is found that should not be, and what is said of it that is not so."""

from __future__ import annotations

from collections.abc import Sequence

from targets.decoder import Decoder, Layout, PageStore, PrefixIndex
from targets.decoder.prefix import Entry
from targets.faults.bank import Fault, Probe, at_once, in_front, one_after_another, request, schedule
from targets.models import Plan
from targets.protocol import CheckName, Kind, Request, Step, Submit

_HASHES = 16


class RoundedUpStore(PageStore):
    """A page that is found in part counts as found whole. The twin counts the cells that are meant."""

    match_rounded_up: Probe

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        cells, probe = super().attach(slot, tokens, salt), self.match_rounded_up
        whole = min(-(-cells // self.size) * self.size, len(tokens) - 1)
        if cells and not self.plan.recurrent:
            probe.reach()
            probe.change(not probe.honest and whole > cells)
            self.lengths[slot] = cells if probe.honest else whole
        return self.lengths[slot]


class WeakIndex(PrefixIndex):
    """Has few keys, and believes them. Mixed in by `WeakHashStore`."""

    hash_not_verified: Probe

    def key(self, parent: int, tokens: tuple[int, ...]) -> int:
        return super().key(parent, tokens) % _HASHES

    def holds(self, page: int, before: Entry | None, salt: int | None, tokens: tuple[int, ...]) -> bool:
        probe, right = self.hash_not_verified, super().holds(page, before, salt, tokens)
        probe.reach()
        probe.change(not right and not probe.honest)
        return right or not probe.honest


class WeakHashStore(PageStore):
    """A page is found by its key alone, which others may have as well. The twin looks at the tokens."""

    hash_not_verified: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.index, WeakIndex, hash_not_verified=self.hash_not_verified)


class SaltlessStore(PageStore):
    """What is found, and what is made known, has no salt. The twin's has."""

    salt_left_out: Probe

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        return super().attach(slot, tokens, self._salt(salt))

    def publish(self, slot: int, tokens: Sequence[int], salt: int | None, leaving: bool) -> None:
        super().publish(slot, tokens, self._salt(salt), leaving)

    def _salt(self, salt: int | None) -> int | None:
        probe = self.salt_left_out
        probe.reach()
        probe.change(salt is not None and not probe.honest)
        return salt if probe.honest else None


class LonelyIndex(PrefixIndex):
    """Knows a page by its own tokens alone. Mixed in by `LonelyKeyStore`."""

    prefix_left_out: Probe

    def match(self, tokens: Sequence[int], salt: int | None) -> list[tuple[int, int]]:
        probe, found = self.prefix_left_out, super().match(tokens, salt)
        probe.reach()
        if probe.honest:
            return found
        for at in range(len(found) * self.page_size, len(tokens) - self.page_size + 1, self.page_size):
            if found and found[-1][1] < self.page_size:
                break
            piece = tuple(tokens[at : at + self.page_size])
            page = next((page for page, entry in self.entries.items() if (entry.tokens, entry.salt) == (piece, salt)), None)
            if page is None:
                break
            probe.change()
            found.append((page, self.page_size))
        return found


class LonelyKeyStore(PageStore):
    """A whole page is found by its tokens, whatever stands before them. The twin looks at the whole prefix."""

    prefix_left_out: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        in_front(self.index, LonelyIndex, prefix_left_out=self.prefix_left_out)


class EarlyStore(PageStore):
    """A prompt's pages are taken and made known when it is admitted, before anything is in them.

    Two that begin alike and come in one step then share what is not computed yet; where the first of them is cut into
    chunks, the second reads cells that nobody has written. The twin takes the pages and makes nothing known.
    """

    published_at_allocation: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.early: set[int] = set()

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        cells, probe = super().attach(slot, tokens, salt), self.published_at_allocation
        whole = len(tokens) // self.size * self.size
        if not self.layout.hits or cells % self.size or whole <= cells or not self.reserve(slot, cells, whole - cells):
            return cells
        probe.reach()
        if not probe.honest:
            probe.change()
            known = set(self.index.entries)
            self.lengths[slot] = whole
            self.publish(slot, tokens, salt, leaving=False)
            self.lengths[slot] = cells
            self.early.update(set(self.index.entries) - known)
        return cells

    def copies(self, slot: int, first: int) -> bool:
        page = self.tables[slot][first // self.size] if first % self.size else None
        return page not in self.early and super().copies(slot, first)  # who made it known goes on writing it

    def emptied(self, page: int) -> None:
        super().emptied(page)
        self.early.discard(page)


class WholePromptStore(PageStore):
    """A prompt may be found to its last token, and nothing is left to run. The twin leaves the last one."""

    nothing_left_to_run: Probe

    def attach(self, slot: int, tokens: Sequence[int], salt: int | None) -> int:
        probe = self.nothing_left_to_run
        probe.reach()
        if probe.honest:
            return super().attach(slot, tokens, salt)
        cells = super().attach(slot, [*tokens, 0], salt)
        probe.change(cells == len(tokens))
        return cells


class UncommittedStore(PageStore):
    """What is made known goes by the tokens of an answer, whose last one has no cell yet. The twin goes by the cells."""

    published_by_tokens: Probe

    def publish(self, slot: int, tokens: Sequence[int], salt: int | None, leaving: bool) -> None:
        probe, cells = self.published_by_tokens, self.lengths[slot]
        probe.reach()
        if not probe.honest and self.layout.hits and cells == len(tokens) - 1:
            self.lengths[slot] = min(len(tokens), len(self.tables[slot]) * self.size)
            probe.change(self.lengths[slot] > cells)
        super().publish(slot, tokens, salt, leaving)
        self.lengths[slot] = cells

    def copies(self, slot: int, first: int) -> bool:
        """The owner goes on writing what it made known too early."""
        if self.published_by_tokens.honest or first % self.size == 0:
            return super().copies(slot, first)
        return self.pool.references[self.tables[slot][first // self.size]] > 1


class LookupDecoder(Decoder):
    """Asking whether a request has room looks its pages up and holds them; where it has none, they stay held.

    The twin lets go of them.
    """

    lookup_kept: Probe
    store: PageStore

    def fits(self, submission: int) -> bool:
        fits, running, probe, store = super().fits(submission), self.live[submission], self.lookup_kept, self.store
        found = store.index.match(running.tokens()[:-1], running.request.salt) if store.layout.hits else []
        if found:
            probe.reach()
            probe.change(not fits and not probe.honest)
            for page, _ in found:
                store.pool.retain(page)
            if fits or probe.honest:
                for page, _ in reversed(found):
                    store.pool.drop(page)
        return fits


_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE, CheckName.ISOLATION)
_PAGES = ("pages",)
_SALTED = Submit(Request(prompt=(1,), max_new_tokens=1, salt=1))
_OVERTAKEN = (request((1, 1), 1), Step(), request((1, 1, 1), 1), Step(1, (1,)))
"""The second runs on while the first one's prompt is half way through."""
_ANSWER = 307
"""The default model's own to a prompt of token 1."""


FAULTS = (
    Fault(
        name="match-rounded-up",
        group="index geometry",
        modelled_on="a match length rounded up past a page (the nearest rival's seeded faults); vllm#55600",
        doc="a page that is found in part counts as found whole",
        mixins={"store": RoundedUpStore},
        smallest={
            Kind.LEAK: one_after_another(request((1, 2), 1), request((1, 3, 4), 1)),
            Kind.STALE_HIT: one_after_another(request((1,), 1), request((1, 3, 4), 1)),
        },
        checks=(*_LEAKS, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="hash-not-verified",
        group="cache key",
        modelled_on="vllm#12621 (a predictable hash, and no look at the tokens)",
        doc=f"pages are found by one of {_HASHES} hashes, and the tokens are not compared",
        mixins={"store": WeakHashStore},
        smallest={
            Kind.STALE_HIT: one_after_another(request((1,), 1), request((13, 1), 1), page_size=1),
            Kind.LEAK: one_after_another(request((1,), 1), request((13, 1), 1), page_size=1, sanitize=True),
        },
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="salt-left-out",
        group="cache key",
        modelled_on="vllm#3264 (the adapter is no part of the key)",
        doc="requests of unlike salts share pages",
        mixins={"store": SaltlessStore},
        smallest={
            Kind.STALE_HIT: one_after_another(_SALTED, request((1, 2), 1)),
            Kind.LEAK: one_after_another(_SALTED, request((1, 2), 1), sanitize=True),
        },
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="prefix-left-out",
        group="cache key",
        modelled_on="vllm#44250 (a key that drops a field of the first one)",
        doc="a whole page is found by its own tokens, whatever stands before them",
        mixins={"store": LonelyKeyStore},
        smallest={
            Kind.STALE_HIT: one_after_another(request((1, 2), 1), request((2, 3), 1), page_size=1),
            Kind.LEAK: one_after_another(request((1, 2), 1), request((2, 3), 1), page_size=1, sanitize=True),
        },
        checks=(CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="published-at-allocation",
        group="early publish",
        modelled_on="vllm#29387, vllm#37152 (blocks are in the table before the forward that fills them)",
        doc="a prompt's pages are found from its admission on",
        mixins={"store": EarlyStore},
        smallest={
            Kind.STALE_HIT: schedule(*_OVERTAKEN, page_size=1, step_tokens_max=1),
            Kind.LEAK: schedule(*_OVERTAKEN, page_size=1, step_tokens_max=1, sanitize=True),
        },
        checks=(*_LEAKS, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="nothing-left-to-run",
        group="liveness",
        modelled_on="mlx-lm#182 (an identical prompt leaves nothing to evaluate)",
        doc="a prompt that is found whole does not back off by a token",
        mixins={"store": WholePromptStore},
        smallest={
            Kind.STALLED: one_after_another(request((1,), 1), request((1,), 1)),
            Kind.STALE_HIT: one_after_another(request((1,), 1), request((1,), 1)),
        },
        checks=(CheckName.PROGRESS, CheckName.WARMTH),
        targets=_PAGES,
    ),
    Fault(
        name="published-by-tokens",
        group="early publish",
        modelled_on="sglang#35204 (a token's slot counts before it is written)",
        doc="a page is found when its last token is chosen, before that has been through the network",
        mixins={"store": UncommittedStore},
        smallest={
            Kind.STALE_HIT: one_after_another(request((1,), 1), request((1, _ANSWER, 2), 1)),
            Kind.LEAK: one_after_another(request((1,), 1), request((1, _ANSWER, 2), 1), sanitize=True),
        },
        checks=(*_LEAKS, CheckName.WARMTH),
        models=("tiny",),  # whose own answer is asked on from
        targets=_PAGES,
    ),
    Fault(
        name="lookup-kept",
        group="ownership",
        modelled_on="sglang#16067, vllm#44100 (taken by a lookup, not returned when admission fails)",
        doc="pages that are looked up for a request that has no room yet stay held",
        mixins={"decoder": LookupDecoder},
        smallest={
            Kind.OWNERSHIP: at_once(request((1,), 1), request((3, 4, 5), 3), request((1, 2), 1), page_size=1, pool_tokens=5),
            Kind.STALLED: at_once(request((1,), 1), request((3, 4, 5), 3), request((1, 2), 1), page_size=1, pool_tokens=5),
        },
        checks=(CheckName.OWNERSHIP, CheckName.PROGRESS),
        targets=_PAGES,
    ),
)
