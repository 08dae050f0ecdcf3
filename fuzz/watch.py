"""Watch: one request's attention, followed through a replay under the probe and held against its reference.

Whose a row of a forward is, the target says (`Control.inspect`); of one that does not, the row is the victim's whose first
queries are. Each step is looked at as it ends and then forgotten, so that memory does not grow with the schedule. Watching
changes nothing that the target computes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping

import msgspec
import torch

from fuzz.probe import Probe
from oracle.attention import Attention
from oracle.reference import Reference
from oracle.rounding import keeps_states
from oracle.where import Departure, Expected, Part, departure, first_difference, tolerance
from targets.protocol import (
    Admitted,
    Emitted,
    Event,
    Finished,
    Freed,
    Inspection,
    Preempted,
    Refused,
    Request,
    Row,
)

MORE_CELLS = "length: more cells than its tokens"
BEGINS_BEHIND = "length: it begins behind cells that are not its own"
_CHECKSUM_STEPS = {torch.float64: 2.0**20, torch.float32: 2.0**8}
"""Cells are rounded to so many steps a unit before their checksum is taken, so that rounding hardly ever shows in it."""
_CHECKSUM_STEPS_HALF = 2.0**2


class StepCells(msgspec.Struct, frozen=True):
    """The victim's cells after one of its steps.

    Attributes:
        tokens: How many of its tokens were run by then.
        length: How many cells its row had, as the target counts.
        checksums: CRC-32 of the cells its last query saw, by layer, rounded so that rounding does not show.
    """

    step: int
    tokens: int
    length: int
    checksums: tuple[int, ...]


class Watch:
    """Follows one request through a replay, a step at a time, so that no step's tensors outlive it.

    Attributes:
        heard: The victim's tokens so far.
        run: How many of its tokens have cells, as they should be: they were run, or were there when it was admitted.
        ended: Whether it has ended; what a forward that was in flight then still does for it is nobody's concern.
        found, token: The first departure, and the index of the token that was being computed.
        why: Why there is no telling, where there is none.
    """

    def __init__(
        self,
        victim: int,
        requests: tuple[Request, ...],
        answers: Mapping[int, tuple[int, ...]],
        reference: Reference,
        vocabulary: int,
        to_the_end: bool,
    ) -> None:
        self.victim = victim
        self.vocabulary = vocabulary
        self.requests = requests
        self.prompt = requests[victim].prompt
        self.reference = reference
        self.to_the_end = to_the_end
        self.heard: list[int] = []
        self.run = 0
        self.ended = False
        self.step = -1
        self.token: int | None = None
        self.found: Departure | None = None
        self.why = ""
        self.steps: list[StepCells] = []
        self.slots: dict[int, int] = {}
        self.streamed: list[tuple[int, torch.Tensor | None]] = []
        sequences = {who: (*request.prompt, *answers.get(who, ())[:-1]) for who, request in enumerate(requests)}
        self.expected = Expected(
            own=self.record(sequences[victim]),
            others=_Lazily({who: tokens for who, tokens in sequences.items() if who != victim}, self.record),
            relative=tolerance(reference.bound),
            states=keeps_states(reference.network),
        )
        self.logits = reference.forward(sequences[victim])[len(self.prompt) - 1 :]

    @property
    def over(self) -> bool:
        """Whether there is nothing more to look at."""
        return bool(self.why) or (self.found is not None and not self.to_the_end)

    def record(self, tokens: tuple[int, ...]) -> list[Attention]:
        """The reference's attention over a whole sequence, a layer each; none for what it can't be asked."""
        if not tokens or max(tokens) >= self.vocabulary:
            return []
        probe = Probe()
        with probe:
            self.reference.forward(tokens)
        return probe.take()

    def told(self, events: list[Event]) -> None:
        """Takes notice of what the target said."""
        for event in events:
            if isinstance(event, Admitted):
                self.slots[event.submission] = event.slot
                if event.submission == self.victim:
                    self.run = min(event.cached, len(self.prompt) + len(self.heard) - 1)
            elif isinstance(event, Freed | Finished | Refused | Preempted):
                self.slots.pop(event.submission, None)
                self.ended |= event.submission == self.victim and isinstance(event, Finished | Refused)

    def stepped(self, events: list[Event], seen: list[Attention], inspection: Inspection | None) -> None:
        """Looks at one step: what was computed for the victim, and what it was given."""
        self.step += 1
        admitted = [event for event in events if isinstance(event, Admitted)]
        self.told(list(admitted))
        shown = [event for event in events if isinstance(event, Emitted)]
        mine = [event for event in shown if event.submission == self.victim]
        # Guesses that came true were run in this step as well: of several tokens, all but the last one.
        known = (*self.prompt, *self.heard, *(event.token for event in mine[:-1]))
        if self.expected.states and not (seen or self.expected.own):
            self.why = "the network has no attention to look at"
        elif seen and not self.expected.own:
            self.why = "the reference's attention can't be seen"
        elif not seen and mine:
            self.why = "the target's attention can't be seen: it is fused, compiled, or in another process"
        elif seen and not self.ended:
            rows = self.rows(seen, inspection, known)
            for row, layers in rows:
                self.look(row, layers, known, told=inspection is not None)
            if mine and not rows and not self.why and self.found is None:
                said = "says of no row that it is" if inspection is not None else "has no row whose first query is"
                self.why = f"the target {said} that of request #{self.victim} in step {self.step}"
        for event in mine:
            self.result(event, shown)
        self.streamed += [(event.submission, event.logits) for event in shown]
        self.heard += [event.token for event in mine]
        self.told([event for event in events if not isinstance(event, Admitted)])

    def rows(
        self, seen: list[Attention], inspection: Inspection | None, known: tuple[int, ...]
    ) -> list[tuple[Row, list[Attention]]]:
        """The victim's rows in this step's forwards, with their layers."""
        layers = len(self.expected.own)
        heads = [attention.visible.shape[1] for attention in self.expected.own]
        if len(seen) % layers:
            self.why = f"{len(seen)} attentions were seen where a forward has {layers}"
            return []
        whole = [attention.unpacked(heads[index % layers]) for index, attention in enumerate(seen)]
        forwards = [whole[start : start + layers] for start in range(0, len(whole), layers)]
        if inspection is None:
            return self._by_query(forwards, known)
        if [len(rows) for rows in inspection.forwards] != [len(forward[0].visible) for forward in forwards]:
            self.why = "the rows that the target tells of are not those of its forwards"
            return []
        self._same_slot(inspection)
        return [
            (row, [attention.row(index, min(len(row.tokens), len(known) - self.run)) for attention in forward])
            for forward, rows in zip(forwards, inspection.forwards, strict=True)
            for index, row in enumerate(rows)
            if row.submission == self.victim and len(known) > self.run
        ]

    def _by_query(self, forwards: list[list[Attention]], known: tuple[int, ...]) -> list[tuple[Row, list[Attention]]]:
        """For a target that does not say whose a row is: the row whose queries in the first layer are the victim's."""
        count = len(known) - self.run
        wanted = self.expected.own[0].stretch(self.run, count).queries
        for forward in forwards:
            for index in range(len(forward[0].visible)):
                mine = forward[0].row(index, count).queries
                if wanted is None or mine is None or wanted.shape != mine.shape:
                    continue
                if first_difference(wanted, mine, self.expected.relative) is None:
                    row = Row(self.victim, self.run, known[self.run :])
                    return [(row, [attention.row(index, count) for attention in forward])]
        return []

    def _same_slot(self, inspection: Inspection) -> None:
        """Whether the victim's row stands in its own slot, and alone there."""
        mine = next((row for rows in inspection.forwards for row in rows if row.submission == self.victim), None)
        slot = self.slots.get(self.victim)
        if mine is None or mine.slot is None or slot is None:
            return
        if mine.slot != slot:
            self.find(Departure(Part.ROW, "row: stands in a slot that it was not given", expected=slot, actual=mine.slot))
        for other, theirs in self.slots.items():
            if theirs == slot and other != self.victim:
                self.find(Departure(Part.ROW, "row: its slot is another live request's as well", owner=other))

    def look(self, row: Row, layers: list[Attention], known: tuple[int, ...], told: bool) -> None:
        """One row of the victim: its tokens and cells as the target counts them, then its attention."""
        first, count = self.run, layers[0].visible.shape[2]
        self.run += count
        self.steps.append(StepCells(self.step, self.run, row.first + count, tuple(map(_checksum, layers))))
        wanted, brought = known[first : first + count], row.tokens[:count]
        if brought != wanted:
            index = next(index for index in range(count) if brought[index] != wanted[index])
            self.find(
                Departure(
                    Part.INPUT,
                    "input: another token than its own",
                    position=first + index,
                    expected=wanted[index],
                    actual=brought[index],
                )
            )
        if row.first != first:
            cause = MORE_CELLS if row.first > first else "length: fewer cells than its tokens"
            cause = BEGINS_BEHIND if first == 0 else cause
            self.find(Departure(Part.LENGTH, cause, position=first, expected=first, actual=row.first))
        if self.found is None:
            found = departure(self.expected, layers, first, count, told)
            if found is not None:
                self.find(found)

    def result(self, event: Emitted, shown: list[Emitted]) -> None:
        """What the victim was given for this step, where everything before it agreed."""
        index = len(self.heard)
        if self.found is not None or self.why or event.logits is None or index >= len(self.logits):
            return
        bound = max(self.reference.bound, self.expected.relative * float(self.logits[index].abs().max()))
        wanted, given = self.logits[index].double(), event.logits.to(self.logits.device).double()
        if wanted.shape != given.shape or bool(((given - wanted).abs() <= bound).all()):
            return
        worst = int((given - wanted).abs().nan_to_num(torch.inf).argmax())
        cause, owner = "result: nobody's", None
        for source, rows in (
            ("another request's, of the same step", [(other.submission, other.logits) for other in shown]),
            ("another request's, of an earlier step", self.streamed),
        ):
            for who, logits in rows:
                if owner is None and who != self.victim and logits is not None and torch.equal(logits, event.logits):
                    cause, owner = f"result: {source}", who
        position, numbers = len(self.prompt) + index - 1, (float(wanted[worst]), float(given[worst]))
        self.find(Departure(Part.RESULT, cause, position=position, expected=numbers[0], actual=numbers[1], owner=owner))

    def find(self, found: Departure) -> None:
        """Keeps the first departure."""
        if self.found is None:
            self.found, self.token = found, len(self.heard)


class _Lazily(Mapping[int, list[Attention]]):
    """The reference's attention of other requests, computed when somebody asks."""

    def __init__(
        self, sequences: Mapping[int, tuple[int, ...]], record: Callable[[tuple[int, ...]], list[Attention]]
    ) -> None:
        self._sequences = sequences
        self._record = record
        self._known: dict[int, list[Attention]] = {}

    def __getitem__(self, submission: int) -> list[Attention]:
        if submission not in self._known:
            self._known[submission] = self._record(self._sequences[submission])
        return self._known[submission]

    def __iter__(self) -> Iterator[int]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)


def _checksum(attention: Attention) -> int:
    """CRC-32 of the K and V that the last query saw."""
    seen = attention.visible[0, :, -1].any(dim=0)
    total = 0
    for cells in (attention.keys, attention.values):
        if cells is not None:
            steps = _CHECKSUM_STEPS.get(cells.dtype, _CHECKSUM_STEPS_HALF)
            whole = (
                (_distinct(cells[0, :, seen]).double() * steps)
                .nan_to_num()
                .clamp(-(2.0**53), 2.0**53)
                .round()
                .to(torch.int64)
            )
            total = zlib.crc32(whole.contiguous().cpu().numpy().tobytes(), total)
    return total


def _distinct(cells: torch.Tensor) -> torch.Tensor:
    """[H, n, D] without the heads that only repeat the one before: for some forwards they are repeated, for some not."""
    heads = len(cells)
    for times in range(heads, 1, -1):
        if heads % times == 0 and torch.equal(cells[::times].repeat_interleave(times, dim=0), cells):
            return cells[::times]
    return cells
