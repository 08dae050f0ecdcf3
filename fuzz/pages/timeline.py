"""Timeline: a trace as a picture's data. Lanes are slots, places in the queue, and pages; columns steps; cells requests.

Geometry only, in pixels: templates draw it. What happens before the first step, and in one step to several requests in one
slot, has room of its own: a column is as wide as the cells of its fullest lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from targets.protocol import (
    Admitted,
    Asked,
    Audit,
    Audited,
    Cancel,
    Crashed,
    Emitted,
    Finished,
    Freed,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Schedule,
    Stalled,
    Stepped,
    Submit,
    Trace,
)

LABEL_PX, CELL_PX, LANE_PX, PAGE_PX, AXIS_PX, GAP_PX = 78, 46, 42, 18, 26, 10
COLUMNS_MAX, PAGES_MAX = 400, 48
COLOURS = 8
"""Requests have so many colours, in turn."""
MARKS = {
    "P": "prefill",
    "D": "decode",
    "H": "hit: tokens that were cached",
    "E": "preempted (evicted)",
    "X": "cancelled, or its deadline",
    "F": "slot given back (freed)",
    "R": "refused",
    "!": "the target broke down",
}


@dataclass
class Cell:
    """What one request does in one lane in one step.

    Attributes:
        marks: Keys of MARKS, the hit with its number of tokens.
        label: In the middle: the token.
        starts: Whether the request was not in this lane one column before.
    """

    request: int
    waits: bool = False
    marks: list[str] = field(default_factory=list)
    label: str = ""
    starts: bool = False
    x: float = 0
    width: float = 0

    @property
    def needs_px(self) -> float:
        """Its least width."""
        return max(CELL_PX, 24 + 8 * sum(len(mark) + 1 for mark in self.marks), 12 + 8 * len(self.label))

    @property
    def colour(self) -> int:
        """The number of its colour."""
        return self.request % COLOURS

    @property
    def words(self) -> str:
        """For who points at it."""
        told = [f"request #{self.request}{' waits' if self.waits else ''}"]
        told += [f"token {self.label}"] if self.label else []
        told += [f"{mark[1:]} tokens were cached" if mark[0] == "H" else MARKS[mark] for mark in self.marks]
        return ", ".join(told)


@dataclass
class Lane:
    """A row of the picture; `columns` has the cells of each step."""

    name: str
    columns: list[list[Cell]]
    y: float = 0
    height: float = LANE_PX


@dataclass
class Column:
    """A step."""

    name: str
    x: float = 0
    width: float = CELL_PX
    begins: bool = False


@dataclass(frozen=True)
class Timeline:
    """All of it.

    Attributes:
        more: Steps that are left out at the end.
    """

    columns: list[Column]
    lanes: list[Lane]
    width: float
    height: float
    requests: list[int]
    more: int = 0
    marks: dict[str, str] = field(default_factory=dict)


def timeline(schedule: Schedule, trace: Trace, begins_at: int | None = None) -> Timeline:
    """The picture of a trace; `begins_at` is the step in which something went wrong first, where that is known."""
    story = _Story(schedule)
    for event in trace:
        story.tell(event)
    story.close_column()
    count = min(len(story.names), COLUMNS_MAX)
    columns = [Column(name, begins=name == str(begins_at)) for name in story.names[:count]]
    slots = [Lane(f"slot {slot}", story.grid(("slot", slot), count)) for slot in sorted(story.slots)]
    queue = [Lane("waiting" if place == 0 else "", story.grid(("wait", place), count)) for place in range(story.places)]
    pages = [Lane(f"page {page}", story.grid(("page", page), count), height=PAGE_PX) for page in sorted(story.pages)]
    lanes = [*slots, *queue, *pages[:PAGES_MAX]]
    width, height = _lay_out(columns, lanes)
    used = {mark[0] for lane in lanes for cells in lane.columns for cell in cells for mark in cell.marks}
    requests = sorted({cell.request for lane in lanes for cells in lane.columns for cell in cells})
    marks = {mark: words for mark, words in MARKS.items() if mark in used}
    return Timeline(columns, lanes, width, height, requests, len(story.names) - count, marks)


def _lay_out(columns: list[Column], lanes: list[Lane]) -> tuple[float, float]:
    """Gives every column, lane and cell its place; returns the size of the whole."""
    x: float = LABEL_PX
    for index, column in enumerate(columns):
        widest = max(
            (sum(cell.needs_px for cell in lane.columns[index]) for lane in lanes if lane.height > PAGE_PX), default=0
        )
        column.x, column.width = x, max(CELL_PX, widest)
        x += column.width
        for lane in lanes:
            cells = lane.columns[index]
            room = column.width / max(1, len(cells))
            for place, cell in enumerate(cells):
                cell.x, cell.width = column.x + place * room, room
    y: float = AXIS_PX
    for before, lane in zip([None, *lanes], lanes, strict=False):
        y += GAP_PX if before is not None and before.name.split(" ")[0] != lane.name.split(" ")[0] and lane.name else 0
        lane.y = y
        y += lane.height
    return x, y + 4


class _Story:
    """Who is where, column by column."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.names: list[str] = []
        self.cells: dict[tuple[tuple[str, int], int], list[Cell]] = {}
        self.running: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.slots: set[int] = set()
        self.places = 0
        self.pages: set[int] = set()
        self.spoken: set[int] = set()
        self.submitted = 0
        self.before: dict[tuple[str, int], set[int]] = {}
        self.present: dict[tuple[str, int], set[int]] = {}
        self.name = "ask"
        self.began = False

    def tell(self, event: object) -> None:
        """Takes one event in."""
        if isinstance(event, Stepped):
            if self.began or self.submitted:
                self.close_column()
            self.began, self.name = True, str(event.step)
            for who in self.waiting:
                self.cell(who)
            for who in self.running:
                self.cell(who)
        elif isinstance(event, Asked):
            self.ask(event)
        elif isinstance(event, Admitted):
            self.begin(event.submission)
            self.running[event.submission] = event.slot
            self.slots.add(event.slot)
            self.cell(event.submission).marks += [f"H{event.cached}"] if event.cached else []
        elif isinstance(event, Prefilled):
            self.mark(event.submission, "P")
        elif isinstance(event, Emitted):
            cell = self.cell(event.submission)
            cell.marks.append("D" if event.submission in self.spoken else "P")
            cell.label = f"{cell.label} {event.token}".strip()
            self.spoken.add(event.submission)
        elif isinstance(event, Audited):
            self.account(event.audit)
        else:
            self.leave(event)

    def begin(self, who: int) -> None:
        """Somebody waits no more: a step in which it is admitted is not one in which it waits."""
        place = self.waiting.pop(who, None)
        cells = self.cells.get((("wait", place or 0), len(self.names)), [])
        if self.name != "ask" and place is not None:
            cells[:] = [cell for cell in cells if cell.request != who or cell.starts]

    def leave(self, event: object) -> None:
        """Takes in an event with which somebody leaves, or everything ends."""
        if isinstance(event, Preempted):
            self.mark(event.submission, "E")
            self.running.pop(event.submission, None)
            self.wait(event.submission)
        elif isinstance(event, Freed):
            self.mark(event.submission, "F")
            self.running.pop(event.submission, None)
        elif isinstance(event, Finished):
            if event.reason in (Reason.CANCELLED, Reason.DEADLINE):
                self.mark(event.submission, "X")
            self.waiting.pop(event.submission, None)
        elif isinstance(event, Refused):
            self.mark(event.submission, "R")
            self.waiting.pop(event.submission, None)
        elif isinstance(event, Crashed | Stalled):
            for who in event.submissions:
                self.mark(who, "!")

    def ask(self, event: Asked) -> None:
        """What the schedule asks: a submit waits until it is admitted, a cancel shows where it is."""
        if event.op >= len(self.schedule.ops):
            return
        op = self.schedule.ops[event.op]
        if isinstance(op, Submit):
            self.wait(self.submitted)
            self.submitted += 1
        elif isinstance(op, Cancel) and (op.submission in self.running or op.submission in self.waiting):
            self.cell(op.submission)

    def wait(self, who: int) -> None:
        """Somebody takes the first free place in the queue."""
        place = next(place for place in range(len(self.waiting) + 1) if place not in self.waiting.values())
        self.waiting[who] = place
        self.places = max(self.places, place + 1)
        self.cell(who)

    def mark(self, who: int, mark: str) -> None:
        """Marks somebody's cell, once."""
        cell = self.cell(who)
        if mark not in cell.marks:
            cell.marks.append(mark)

    def cell(self, who: int) -> Cell:
        """Somebody's cell in this column, where it is now; where it is nowhere any more, the last one that it had."""
        if who in self.running:
            lane = ("slot", self.running[who])
        elif who in self.waiting:
            lane = ("wait", self.waiting[who])
        else:
            lane = next(
                (lane for lane, present in self.present.items() if who in present and lane[0] != "page"), ("wait", 0)
            )
            self.places = max(self.places, 1 if lane[0] == "wait" else 0)
        cells = self.cells.setdefault((lane, len(self.names)), [])
        found = next((cell for cell in cells if cell.request == who), None)
        if found is None:
            found = Cell(who, waits=lane[0] == "wait", starts=who not in self.before.get(lane, ()))
            cells.append(found)
            self.present.setdefault(lane, set()).add(who)
        return found

    def account(self, audit: Audit) -> None:
        """Which pages everybody holds at the end of a step."""
        for holding in audit.held:
            for page in holding.pages:
                self.pages.add(page)
                cells = self.cells.setdefault((("page", page), len(self.names)), [])
                for who in holding.owners:
                    if all(cell.request != who for cell in cells):
                        before = self.before.get(("page", page), ())
                        cells.append(Cell(who, starts=who not in before))
                        self.present.setdefault(("page", page), set()).add(who)

    def close_column(self) -> None:
        """A step is over."""
        self.names.append(self.name)
        self.before, self.present = self.present, {}

    def grid(self, lane: tuple[str, int], count: int) -> list[list[Cell]]:
        """A lane's cells, column by column."""
        return [self.cells.get((lane, index), []) for index in range(count)]
