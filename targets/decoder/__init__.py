"""Our batched decoder with slot reuse, for any Hugging Face causal LM.

    Decoder ──> Scheduler (who gets which slot)
       │  └───> Batch     (the rows of this step's forward)
       └──────> Runner ──> SlotStore (K and V of every slot), StateStore (its recurrent states)

`Parts` names the class of each part, so that another one (or a planted fault) can take a part's place.
Imports `targets.protocol` and `targets.models` only.
"""

from targets.decoder.batch import Batch
from targets.decoder.engine import Decoder, Parts
from targets.decoder.factory import SlotsFactory
from targets.decoder.runner import Feed, Runner
from targets.decoder.scheduler import Scheduler
from targets.decoder.slots import Rows, SlotCache, SlotStore
from targets.decoder.states import StateCache, StateStore

__all__ = [
    "Batch",
    "Decoder",
    "Feed",
    "Parts",
    "Rows",
    "Runner",
    "Scheduler",
    "SlotCache",
    "SlotStore",
    "SlotsFactory",
    "StateCache",
    "StateStore",
]
