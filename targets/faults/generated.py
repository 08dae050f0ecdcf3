"""Generated faults: for every field of a request's state, a decoder in which two requests exchange it once, mid-run.

Not of the bank, whose faults retell what really happened: these are its control for completeness. A field whose exchange
nobody notices is one that the checks do not watch, unless requests may share it, and then the table says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from targets.decoder import DECODERS, Decoder, Parts, Rows
from targets.decoder.running import Running
from targets.faults.bank import Probe
from targets.protocol import Event, Setting

Exchange = Callable[[Any, Running, Running], bool]
"""Exchanges a field of two requests of a decoder; whether that makes a difference."""


@dataclass(frozen=True)
class Field:
    """One field of the state that a decoder keeps for each request.

    Attributes:
        name: The part of the decoder, and the attribute.
        exchange: Of two requests' state; None where the field is one of a forward's rows.
        waiting: Whether it is a field of requests that wait, after a preemption.
        shareable: Why an exchange changes nothing that anybody could see; empty for all that must be found.
        settings: Knobs that must be set for the field to matter.
        target, model: On which it exists.
    """

    name: str
    exchange: Exchange | None = None
    waiting: bool = False
    shareable: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    target: str = "slots"
    model: str = "tiny"

    def plant(self, probe: Probe | None = None) -> Parts:
        """The parts of a decoder in which it is exchanged; with an honest probe it is only looked at."""
        parts = DECODERS[self.target]
        changes = {"probe": probe or Probe(), "field": self}
        if self.exchange is None:
            return parts.with_(runner=type("ExchangingRunner", (ExchangingRunner, parts.runner), changes))
        return parts.with_(decoder=type("ExchangingDecoder", (ExchangingDecoder, parts.decoder), changes))


class ExchangingDecoder(Decoder):
    """Before a step, two requests in mid-answer that differ in a field exchange it: each two of them once."""

    probe: Probe
    field: Field

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.exchanged: set[tuple[int, int]] = set()

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        for one, other in self.couples():
            self.probe.reach()
            exchange = self.field.exchange
            if not self.probe.honest and exchange is not None and exchange(self, one, other):
                self.probe.change()
                self.exchanged.add((one.submission, other.submission))
                break
        return super().step(rows)

    def couples(self) -> Iterator[tuple[Running, Running]]:
        """Each two requests in such a state that have exchanged nothing yet."""
        if self.field.waiting:
            alike = [each for each in self.live.values() if each.slot is None and each.saved is not None]
        else:
            alike = [each for each in self.live.values() if each.slot is not None and each.answer]
        for one, other in itertools.combinations(alike, 2):
            if (one.submission, other.submission) not in self.exchanged:
                yield one, other


class ExchangingRunner:
    """Two rows of one of the first forwards that have only decodes exchange a field."""

    probe: Probe
    field: Field
    forwards_seen = 0

    def place(self, *arguments: Any) -> Rows:
        rows: Rows = super().place(*arguments)  # type: ignore[misc]
        self.forwards_seen += rows.last is None and len(rows.slots) > 1
        if self.forwards_seen != 2 or rows.last is not None or len(rows.slots) < 2:
            return rows
        attribute = self.field.name.partition(".")[2]
        if attribute in rows.__slots__:
            self.swap(getattr(rows, attribute))
        return rows

    def masks(self, rows: Rows) -> dict[str, Any]:
        masks: dict[str, Any] = super().masks(rows)  # type: ignore[misc]
        if self.forwards_seen == 2 and self.field.name == "rows.mask" and rows.last is None and len(rows.slots) > 1:
            self.swap(masks["attention_mask"])
        return masks

    def swap(self, tensor: torch.Tensor) -> None:
        """The first and the last row of a tensor change places."""
        self.probe.reach()
        if not self.probe.honest and not torch.equal(tensor[0], tensor[-1]):
            tensor[[0, -1]] = tensor[[-1, 0]]
            self.probe.change()


def _of_request(name: str) -> Exchange:
    """An attribute of what the decoder knows of a live request."""

    def exchange(_: Any, one: Running, other: Running) -> bool:
        mine, theirs = getattr(one, name), getattr(other, name)
        setattr(one, name, theirs)
        setattr(other, name, mine)
        return bool(mine != theirs) if name not in ("saved", "states") else mine is not theirs

    return exchange


def _of_batch(column: int) -> Exchange:
    """A column of the rows that decode."""

    def exchange(decoder: Any, one: Running, other: Running) -> bool:
        rows = [decoder.batch.submissions.index(each.submission) for each in (one, other)]
        differs = decoder.batch.state[rows[0], column] != decoder.batch.state[rows[1], column]
        decoder.batch.state[rows, column] = decoder.batch.state[rows[::-1], column]
        return bool(differs)

    return exchange


def _rows_of_batch(decoder: Any, one: Running, other: Running) -> bool:
    """Which row is whose."""
    rows = [decoder.batch.submissions.index(each.submission) for each in (one, other)]
    _swap(decoder.batch.submissions, *rows)
    return True


def _of_asked(name: str) -> Exchange:
    """An attribute of what the sampler knows of a row."""

    def exchange(decoder: Any, one: Running, other: Running) -> bool:
        asked = [decoder.sampler.rows[decoder.sampler.row_of(each.submission)] for each in (one, other)]
        mine, theirs = (getattr(each, name) for each in asked)
        setattr(asked[0], name, theirs)
        setattr(asked[1], name, mine)
        return bool(mine != theirs)

    return exchange


def _of_sampler(name: str) -> Exchange:
    """A row of one of the sampler's slabs."""

    def exchange(decoder: Any, one: Running, other: Running) -> bool:
        if decoder.sampler.slabs is None:
            return False
        rows = [decoder.sampler.row_of(each.submission) for each in (one, other)]
        return _swap_rows(getattr(decoder.sampler.slabs, name), *rows)

    return exchange


def _of_store(name: str) -> Exchange:
    """A list of the store that has an item for each slot."""

    def exchange(decoder: Any, one: Running, other: Running) -> bool:
        items = getattr(decoder.store, name)
        differs = bool(items[one.slot] != items[other.slot])
        _swap(items, one.slot, other.slot)
        return differs

    return exchange


def _cells(name: str) -> Exchange:
    """All cells of two slots, keys or values, of every layer."""

    def exchange(decoder: Any, one: Running, other: Running) -> bool:
        differ = [_swap_rows(slab, one.slot, other.slot) for slab in getattr(decoder.store, name)]
        return any(differ)

    return exchange


def _table(decoder: Any, one: Running, other: Running) -> bool:
    """The pages of two slots, in the lists and in the array that forwards read."""
    store = decoder.store
    differs = bool(store.tables[one.slot] != store.tables[other.slot])
    _swap(store.tables, one.slot, other.slot)
    store.table[[one.slot, other.slot]] = store.table[[other.slot, one.slot]]
    return differs


def _states(decoder: Any, one: Running, other: Running) -> bool:
    """The recurrent states of two slots."""
    differ = [_swap_rows(slab, one.slot, other.slot) for slab in decoder.states.slabs.values()]
    return any(differ)


def _owners(decoder: Any, one: Running, other: Running) -> bool:
    """Who holds which slot, as the scheduler has it."""
    _swap(decoder.scheduler.owners, one.slot, other.slot)
    return True


def _live(decoder: Any, one: Running, other: Running) -> bool:
    """Under which submission a request is known."""
    _swap(decoder.live, one.submission, other.submission)
    return True


def _swap(items: Any, one: Any, other: Any) -> None:
    items[one], items[other] = items[other], items[one]


def _swap_rows(slab: torch.Tensor, one: int | None, other: int | None) -> bool:
    """Exchanges two rows of a slab; whether they differ."""
    differs = not torch.equal(slab[one], slab[other])
    slab[[one, other]] = slab[[other, one]]
    return differs


_MOVED: Mapping[str, Setting] = {"preempt": "move"}
FIELDS: tuple[Field, ...] = (
    *(Field(f"running.{name}", _of_request(name)) for name in ("submission", "request", "slot", "answer", "fed")),
    Field("running.share", _of_request("share"), shareable="every step plans it anew"),
    *(Field(f"running.{name}", _of_request(name), settings={"pipelined": True}) for name in ("in_flight", "launches")),
    Field("running.saved", _of_request("saved"), waiting=True, settings=_MOVED, target="pages"),
    Field("running.states", _of_request("states"), waiting=True, settings=_MOVED, target="pages", model="tiny-bamba"),
    Field("batch.submissions", _rows_of_batch),
    Field("batch.slot", _of_batch(0)),
    Field("batch.token", _of_batch(1)),
    Field("sampler.submission", _of_asked("submission")),
    *(Field(f"sampler.{name}", _of_asked(name)) for name in ("request", "length", "apart")),
    *(Field(f"sampler.{name}", _of_sampler(name)) for name in ("counts", "prompts", "bias", "barred", "ends")),
    Field("store.lengths", _of_store("lengths")),
    Field("store.generations", _of_store("generations"), settings={"sanitize": True}),
    Field("store.keys", _cells("keys")),
    Field("store.values", _cells("values")),
    Field("pages.tables", _table, target="pages"),
    Field("pages.chains", _of_store("chains"), target="pages", settings={"page_size": 4}),
    Field("states.slabs", _states, model="tiny-bamba"),
    Field("scheduler.owners", _owners),
    Field("live", _live),
    *(Field(f"rows.{name}") for name in ("ids", "positions", "slots", "mask")),
)
"""All that a decoder keeps for each request, and what a forward has for each row."""
