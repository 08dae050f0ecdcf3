"""Parts: the class of each part of a decoder, so that another one, or a planted fault, can take a part's place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from targets.decoder.batch import Batch
from targets.decoder.drafts import Drafter
from targets.decoder.engine import Decoder
from targets.decoder.planner import Planner
from targets.decoder.runner import Runner
from targets.decoder.sampler import Sampler
from targets.decoder.scheduler import Scheduler
from targets.decoder.slots import SlotStore
from targets.decoder.states import StateStore
from targets.decoder.store import Store


@dataclass(frozen=True)
class Parts:
    """The class of each part of a decoder."""

    decoder: type[Decoder]
    scheduler: type[Scheduler] = Scheduler
    store: type[Store] = SlotStore
    states: type[StateStore] = StateStore
    batch: type[Batch] = Batch
    runner: type[Runner] = Runner
    planner: type[Planner] = Planner
    drafter: type[Drafter] = Drafter
    sampler: type[Sampler] = Sampler

    def with_(self, **changes: Any) -> Parts:
        """The same parts but for those named."""
        return replace(self, **changes)
