"""Faults of what is in flight: a forward is asked for in one step and lands in the next, and much happens in between."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import torch

from targets.decoder import Decoder, Feed, Layout, PageStore, Rows, SlotStore
from targets.decoder.running import UNKNOWN, Running
from targets.faults.bank import Fault, Probe, at_once, request, schedule
from targets.models import Plan
from targets.protocol import GREEDY, Cancel, CheckName, Emitted, Event, Kind, Reason, Request, Step, Submit


class SlotFreeingDecoder(Decoder):
    """A request that ends gives its slot back at once, and the forward that it is in still writes there.

    The twin waits until that has landed.
    """

    slot_freed_in_flight: Probe

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        probe, launches = self.slot_freed_in_flight, running.launches
        if launches and running.slot is not None:
            probe.reach()
            if not probe.honest:
                probe.change()
                running.launches = 0
        events = super().retire(running, reason)
        running.launches = launches
        return events


class ClientResultDecoder(Decoder):
    """A result whose request has ended goes to whoever runs under that client's id now. The twin drops it."""

    late_result_by_client_id: Probe

    def land(self) -> list[Event]:
        probe, launch = self.late_result_by_client_id, self.launched[0]
        for index, (running, feed) in enumerate(zip(launch.running, launch.feeds, strict=True)):
            if running.request.client_id is None or running.submission in self.live or not launch.complete[index]:
                continue
            probe.reach()
            heir = self._heir(running, launch.running)
            if heir is not None and not probe.honest:
                probe.change()
                tokens = [self.chosen[running.submission]] if feed.tokens[-1] == UNKNOWN else feed.tokens
                launch.feeds[index] = feed._replace(tokens=tokens, submission=heir.submission)
                launch.running[index] = heir
                running.launches, running.in_flight = running.launches - 1, running.in_flight - 1
                heir.launches, heir.in_flight = heir.launches + 1, heir.in_flight + 1
        return super().land()

    def _heir(self, ended: Running, there: list[Running]) -> Running | None:
        """Who has the ended request's client id and a row, and no result of its own in this forward."""
        for submission in self.batch.submissions:
            running = self.live[submission]
            if running.request.client_id == ended.request.client_id and running not in there:
                return running
        return None


class LeakingDecoder(Decoder):
    """The result of a request that was cancelled meanwhile is dropped, and its slot with it. The twin frees the slot."""

    cancelled_in_flight_leaks: Probe

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        events, probe = super().retire(running, reason), self.cancelled_in_flight_leaks
        if running.launches and running.slot is not None and reason is Reason.CANCELLED:
            probe.reach()
            if not probe.honest:
                probe.change()
                self.launched[-1].retiring.remove(running)
        return events


class RowTokenDecoder(Decoder):
    """The token that the forward before chose is looked up by row, and rows have moved since.

    The twin looks it up by request.
    """

    token_of_wrong_row: Probe

    def land(self) -> list[Event]:
        probe, launch = self.token_of_wrong_row, self.launched[0]
        rows: list[int] = self.__dict__.setdefault("rows_before", [])
        for index, feed in enumerate(launch.feeds):
            if feed.tokens[-1] == UNKNOWN and index < len(rows) and rows[index] in self.chosen:
                probe.reach()
                source = feed.submission if probe.honest else rows[index]
                probe.change(self.chosen[source] != self.chosen[feed.submission])
                launch.feeds[index] = feed._replace(tokens=[self.chosen[source]])
        rows[:] = [feed.submission for feed in launch.feeds]
        return super().land()


class PageFreeingDecoder(Decoder):
    """A request that ends gives its pages back at once, and the forward that it is in still has them in its table.

    The twin waits until that has landed.
    """

    page_freed_in_flight: Probe
    store: PageStore

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        events, probe, slot = super().retire(running, reason), self.page_freed_in_flight, running.slot
        if running.launches and slot is not None:
            probe.reach()
            if not probe.honest:
                probe.change()
                self.publish(running, slot, leaving=True)
                self.store.pool.release(reversed(self.store.tables[slot]))
                self._gone().add(slot)
        return events

    def give_back(self, running: Running) -> list[Event]:
        slot = running.slot
        if slot is not None and slot in self._gone():
            self._gone().remove(slot)
            self.store.put_table(slot, [])
            self.store.lengths[slot] = 0
        return super().give_back(running)

    def _gone(self) -> set[int]:
        """Slots whose pages were given back, and that are held still."""
        slots: set[int] = self.__dict__.setdefault("gone", set())
        return slots


class LiveViewStore(SlotStore):
    """Reads a slot's cells where `read_as` says that it stands."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.read_as = torch.arange(len(self.lengths), device=layout.device)

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        return super().read(layer, replace(rows, slots=self.read_as[rows.slots]))


class LiveViewDecoder(Decoder):
    """A forward reads the cells of whoever has its rows when it runs, not of those for whom it was asked for.

    The twin keeps a copy.
    """

    cells_by_live_view: Probe
    store: LiveViewStore

    def feeds(self, chosen: list[int]) -> list[Feed]:
        self._rows().append(list(chosen))
        return super().feeds(chosen)

    def land(self) -> list[Event]:
        probe, launch, slots, read_as = self.cells_by_live_view, self.launched[0], self.batch.slots(), self.store.read_as
        for feed, row in zip(launch.feeds, self._rows().popleft(), strict=True):
            probe.reach()
            if row < len(slots) and not probe.honest:
                probe.change(slots[row] != feed.slot)
                read_as[feed.slot] = slots[row]
        events = super().land()
        torch.arange(len(read_as), out=read_as)
        return events

    def _rows(self) -> deque[list[int]]:
        """The rows of every forward that has not landed."""
        rows: deque[list[int]] = self.__dict__.setdefault("rows_launched", deque())
        return rows


class LateStreamDecoder(Decoder):
    """The token that comes for a request that has ended is streamed. The twin drops it.

    (Only for those that take the likeliest: the parameters of the others have gone with their row.)
    """

    late_token_streamed: Probe

    def land(self) -> list[Event]:
        probe, ended = (
            self.late_token_streamed,
            [
                running
                for running in self.launched[0].running
                if running.submission not in self.live and running.request.sampling == GREEDY
            ],
        )
        events = super().land()
        for running in ended:
            token = self.chosen.get(running.submission)
            if token is not None and not running.in_flight:
                probe.reach()
                if not probe.honest:
                    probe.change()
                    events.append(Emitted(running.submission, token))
        return events


class PlaceholderDecoder(Decoder):
    """Where the last token is not known yet, the one before it is fed again. The twin leaves the place to be filled."""

    token_not_known_yet: Probe

    def feeds(self, chosen: list[int]) -> list[Feed]:
        feeds, probe, tokens = super().feeds(chosen), self.token_not_known_yet, self.batch.tokens()
        for index, (row, feed) in enumerate(zip(chosen, feeds, strict=True)):
            running = self.live[self.batch.submissions[row]]
            if feed.tokens[-1] == UNKNOWN and running.answer:
                probe.reach()
                if not probe.honest:
                    probe.change()
                    feeds[index] = feed._replace(tokens=[tokens[row]])
        return feeds


_LEAKS = (CheckName.SWAP, CheckName.PROVENANCE, CheckName.RESIDUE, CheckName.ISOLATION)
_PIPELINED = {"pipelined": True}
_CANCELLED = schedule(request((1,), 1), Step(), Cancel(0))


def _named(prompt: tuple[int, ...], new: int) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, client_id=0))


FAULTS = (
    Fault(
        name="slot-freed-in-flight",
        group="free in flight",
        modelled_on="sglang#18803 (a finished request's row is given away while a forward still reads it)",
        doc="a slot is free as soon as its request ends, whatever still writes to it",
        mixins={"decoder": SlotFreeingDecoder},
        smallest={
            Kind.LEAK: schedule(request((1,), 1), Step(), Cancel(0), request((2,), 1)),
            Kind.OWNERSHIP: schedule(request((1,), 1), Step(), Cancel(0), request((2,), 1)),
        },
        checks=(CheckName.OWNERSHIP, CheckName.SWAP, CheckName.PROVENANCE, CheckName.ISOLATION),
        settings=_PIPELINED,
    ),
    Fault(
        name="late-result-by-client-id",
        group="id alias",
        modelled_on="vllm#42492 (results in flight are matched by an id that was taken again)",
        doc="the result of a request that has ended goes to the next one of its client's id",
        mixins={"decoder": ClientResultDecoder},
        smallest={
            Kind.LEAK: schedule(_named((1,), 1), Step(), Cancel(0), _named((2,), 1)),
            Kind.OWNERSHIP: schedule(_named((1,), 1), Step(), Cancel(0), _named((2,), 2)),
        },
        checks=(CheckName.OWNERSHIP, CheckName.SWAP, CheckName.ISOLATION),
        settings=_PIPELINED,
    ),
    Fault(
        name="cancelled-in-flight-leaks",
        group="ownership",
        modelled_on="sglang#36926 (a late result of an aborted request has no owner)",
        doc="a request that is cancelled while a forward is in flight keeps its slot",
        mixins={"decoder": LeakingDecoder},
        smallest={
            Kind.OWNERSHIP: _CANCELLED,
            Kind.STALLED: schedule(request((1,), 1), Step(), Cancel(0), request((2,), 1), slots=1),
        },
        checks=(CheckName.OWNERSHIP, CheckName.PROGRESS),
        settings=_PIPELINED,
    ),
    Fault(
        name="token-of-wrong-row",
        group="shared buffer",
        modelled_on="vllm#26385, vllm#36013 (the last step's results are read by a row that has moved)",
        doc="a forward reads the token that the one before it chose by row, and rows have moved",
        mixins={"decoder": RowTokenDecoder},
        smallest={Kind.LEAK: at_once(request((1,), 1), request((2,), 2))},
        checks=(CheckName.SWAP, CheckName.ISOLATION),
        settings=_PIPELINED,
    ),
    Fault(
        name="page-freed-in-flight",
        group="free in flight",
        modelled_on="sglang#38140, sglang#35049 (a page is free while a launched step still uses it)",
        doc="pages are free as soon as their request ends, whatever still writes to them",
        mixins={"decoder": PageFreeingDecoder},
        smallest={Kind.OWNERSHIP: _CANCELLED},
        checks=(CheckName.OWNERSHIP,),
        settings=_PIPELINED,
        targets=("pages",),
    ),
    Fault(
        name="cells-by-live-view",
        group="shared buffer",
        modelled_on="TensorRT-LLM#15546, llama.cpp#28056 (an input buffer is overwritten before the launch has read it)",
        doc="a forward reads the cells of whoever has its rows when it runs",
        mixins={"decoder": LiveViewDecoder, "store": LiveViewStore},
        smallest={
            Kind.LEAK: at_once(*(request((token,), 1) for token in (1, 2, 3)), admit_max=1),
            Kind.INTERFERENCE: at_once(
                *(request((token,), 1) for token in (1, 2, 3)), admit_max=1, reuse="zero-on-allocate"
            ),
        },
        checks=_LEAKS,
        settings=_PIPELINED,
    ),
    Fault(
        name="late-token-streamed",
        group="lost result",
        modelled_on="vllm#48245, vllm#29355 (one token more after the end)",
        doc="a token that comes after its request has ended is streamed",
        mixins={"decoder": LateStreamDecoder},
        smallest={Kind.BOOKKEEPING: schedule(request((1,), 1), Step(), Cancel(0), Step())},
        checks=(CheckName.BOOKKEEPING,),
        settings=_PIPELINED,
    ),
    Fault(
        name="token-not-known-yet",
        group="shared buffer",
        modelled_on="vllm#26467 (a placeholder where the last token should be)",
        doc="a forward is fed the token before the last, because the last is still in flight",
        mixins={"decoder": PlaceholderDecoder},
        smallest={Kind.WRONG_ALONE: at_once(request((1,), 3))},
        checks=(CheckName.ISOLATION,),
        settings=_PIPELINED,
    ),
)
