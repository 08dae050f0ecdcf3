"""Faults of threads: what several of them share over one model, and may only one at a time.

Each is right where one request runs at a time, and most are where a lock is held through the whole forward: that is what the
lock hides, and what is gone with it. The knob `lock` stands at its default, without one, unless a fault says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from targets.decoder import Feed, Layout, Rows, ThreadRunner, ThreadStore
from targets.faults.bank import EVERYWHERE, Fault, Probe, at_once, request
from targets.models import Plan
from targets.protocol import CheckName, Kind

_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE)


class OneCacheStore(ThreadStore):
    """One context for all: who comes is given the cache of whoever is there. The twin gives each a context of its own."""

    threads_one_cache: Probe

    def begin(self, slot: int) -> None:
        probe = self.threads_one_cache
        probe.reach()
        super().begin(slot)
        there = next((cache for other, cache in self.caches.items() if other != slot), None)
        if there is not None and not probe.honest:
            probe.change()
            self.caches[slot] = there


class ContextInModelStore(ThreadStore):
    """The context in use is an attribute of the model, set as a forward begins: another thread's is, a turn later.

    The twin's contexts go down with the call.
    """

    threads_context_in_model: Probe

    def locate(self, rows: Rows) -> None:
        super().locate(rows)
        self.__dict__["in_use"] = rows.slots

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        super().write(layer, keys, values, self.meant(rows))

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        return super().read(layer, self.meant(rows))

    def meant(self, rows: Rows) -> Rows:
        """The rows as they stand in the context that is in use."""
        probe, in_use = self.threads_context_in_model, self.__dict__["in_use"]
        probe.reach()
        if probe.honest or torch.equal(in_use, rows.slots):
            return rows
        probe.change()
        written = rows.written
        if written is not None:
            written = (written[0], written[1], in_use[written[0]], written[3])
        return replace(rows, slots=in_use, written=written)


class ScratchStore(ThreadStore):
    """Cells are gathered into one scratch buffer, which the next thread gathers into before they are attended to.

    The twin gathers into memory of its own.
    """

    threads_share_scratch: Probe

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.scratch: dict[float, torch.Tensor] = {}

    def gather(self, tensors: list[torch.Tensor], cells: int, constant: float) -> torch.Tensor:
        probe, gathered = self.threads_share_scratch, super().gather(tensors, cells, constant)
        probe.reach()
        if probe.honest:
            return gathered
        buffer = self.scratch.get(constant)
        if buffer is None or len(buffer) < gathered.numel():
            buffer = self.scratch[constant] = torch.empty_like(gathered).flatten()
        else:
            probe.change()
        return buffer[: gathered.numel()].view_as(gathered).copy_(gathered)


class LostLengthRunner(ThreadRunner):
    """A forward reads everybody's lengths as it begins and writes them all back as it ends: who grew meanwhile, did not.

    The twin writes back its own row's only.
    """

    threads_length_lost: Probe

    def forward(self, feeds: Sequence[Feed]) -> torch.Tensor:
        probe, lengths = self.threads_length_lost, self.store.lengths.copy()
        logits = super().forward(feeds)
        probe.reach()
        if not probe.honest:
            mine = {feed.slot for feed in feeds}
            kept = [now if slot in mine else lengths[slot] for slot, now in enumerate(self.store.lengths)]
            probe.change(kept != self.store.lengths)
            self.store.lengths = kept
        return logits


class ArrivalRunner(ThreadRunner):
    """Results are handed out in the order in which threads are done. The twin goes by whose they are."""

    threads_answer_as_they_end: Probe

    def collect(self, logits: dict[int, torch.Tensor]) -> torch.Tensor:
        probe, finished = self.threads_answer_as_they_end, self.store.turns.finished
        probe.reach()
        if probe.honest:
            return super().collect(logits)
        probe.change(finished != sorted(finished))
        return torch.stack([logits[number] for number in finished])


FAULTS = (
    Fault(
        name="threads-one-cache",
        group="threads",
        modelled_on="five threads in one generate with a global cache, with a lock or without (source article)",
        doc="threads that are there together have one cache, and overwrite each other's cells",
        mixins={"store": OneCacheStore},
        smallest={
            Kind.LEAK: at_once(request((1,), 1), request((2,), 1)),
            Kind.OWNERSHIP: at_once(request((1,), 2), request((2,), 2), sanitize=True),
        },
        checks=(*_LEAKS, CheckName.OWNERSHIP),
        models=EVERYWHERE,
        targets=("threads",),
    ),
    Fault(
        name="threads-context-in-model",
        group="threads",
        modelled_on="a context each, but set on the model before the call, without a lock (source article)",
        doc="which context is in use is said once a forward, for all threads",
        mixins={"store": ContextInModelStore},
        smallest={Kind.LEAK: at_once(request((1,), 1), request((2,), 1))},
        checks=_LEAKS,
        models=EVERYWHERE,
        targets=("threads",),
    ),
    Fault(
        name="threads-share-scratch",
        group="threads",
        modelled_on="a static work buffer in a kernel that is called from several threads",
        doc="cells are gathered into one buffer, which another thread fills before they are attended to",
        mixins={"store": ScratchStore},
        smallest={Kind.LEAK: at_once(request((1,), 1), request((2,), 1))},
        checks=(CheckName.SWAP,),
        models=EVERYWHERE,
        targets=("threads",),
    ),
    Fault(
        name="threads-length-lost",
        group="threads",
        modelled_on="a lost update: a list that is read, changed and written back without a lock",
        doc="a forward that ends takes back by how much others have grown since it began",
        mixins={"runner": LostLengthRunner},
        smallest={
            Kind.OWNERSHIP: at_once(request((1,), 2), request((1,), 1)),
            Kind.INTERFERENCE: at_once(request((1,), 2), request((1,), 1)),
        },
        checks=(CheckName.OWNERSHIP, CheckName.ISOLATION),
        models=EVERYWHERE,
        targets=("threads",),
    ),
    Fault(
        name="threads-answer-as-they-end",
        group="threads",
        modelled_on="results collected as futures complete, and zipped with the requests",
        doc="logits go to rows in the order in which their threads are done",
        mixins={"runner": ArrivalRunner},
        smallest={Kind.LEAK: at_once(request((1,), 1), request((2,), 1))},
        checks=(CheckName.SWAP,),
        models=EVERYWHERE,
        settings={"turns": 1},
        targets=("threads",),
    ),
)
