"""Our batched decoder, for any Hugging Face causal LM: one engine whose requests may share state in several ways.

It also runs networks with an encoder: batches of items (ItemStore), and requests that share what an encoder made of their
sources or pictures (Shelf; CrossingStore, PictureStore).

    Decoder ──> Scheduler (who gets which slot)
       │  ├───> Batch     (the rows, and what goes with each)
       │  ├───> Sampler   (which token each row takes)
       │  └───> Drafter   (which it will perhaps take next)
       └──────> Runner ──> Store (K and V of every slot: SlotStore, PageStore, PrivateStore, ThreadStore)
                     │       └──> Pool, PrefixIndex (of pages)
                     └────> StateStore (the recurrent states of every slot)

`Parts` names the class of each part, so that another one (or a planted fault) can take a part's place.
Imports `targets.protocol` and `targets.models` only.
"""

from targets.decoder.batch import Batch
from targets.decoder.crossing import CrossingRunner, CrossingStore, SourceRunner, SourceStore
from targets.decoder.drafts import Drafter
from targets.decoder.engine import Decoder
from targets.decoder.factory import DECODERS, FAMILIES, DecoderFactory
from targets.decoder.items import ItemRunner, ItemStore
from targets.decoder.layout import Layout, plan_bytes
from targets.decoder.pages import PageStore
from targets.decoder.parts import Parts
from targets.decoder.pictures import PictureRunner, PictureStore
from targets.decoder.pool import Pool
from targets.decoder.prefix import PrefixIndex
from targets.decoder.private import PrivateStore
from targets.decoder.rows import Rows
from targets.decoder.runner import Feed, Runner
from targets.decoder.sampler import Sampler
from targets.decoder.scheduler import Scheduler
from targets.decoder.segments import PackedRows, SegmentRunner, SegmentStore
from targets.decoder.shelf import Entry, Shelf
from targets.decoder.slots import SlotCache, SlotStore
from targets.decoder.states import StateCache, StateStore
from targets.decoder.static import PaddedRows, StaticDecoder, StaticRunner, StaticScheduler, StaticStore
from targets.decoder.store import Store
from targets.decoder.threads import ThreadRunner, ThreadStore, Turns

__all__ = [
    "Batch",
    "CrossingRunner",
    "CrossingStore",
    "DECODERS",
    "Decoder",
    "DecoderFactory",
    "Drafter",
    "FAMILIES",
    "Entry",
    "Feed",
    "ItemRunner",
    "ItemStore",
    "Layout",
    "PackedRows",
    "PaddedRows",
    "PageStore",
    "Parts",
    "PictureRunner",
    "PictureStore",
    "Pool",
    "PrefixIndex",
    "PrivateStore",
    "Rows",
    "Runner",
    "Sampler",
    "Scheduler",
    "SegmentRunner",
    "SegmentStore",
    "Shelf",
    "SlotCache",
    "SlotStore",
    "SourceRunner",
    "SourceStore",
    "StateCache",
    "StateStore",
    "StaticDecoder",
    "StaticRunner",
    "StaticScheduler",
    "StaticStore",
    "Store",
    "ThreadRunner",
    "ThreadStore",
    "Turns",
    "plan_bytes",
]
