"""The timeline says who was where, step by step."""

from __future__ import annotations

from fuzz.pages.timeline import CELL_PX, LABEL_PX, Lane, Timeline, timeline
from targets.protocol import (
    Admitted,
    Asked,
    Audit,
    Audited,
    Cancel,
    Emitted,
    Event,
    Finished,
    Freed,
    Holding,
    Preempted,
    Prefilled,
    Reason,
    Request,
    Schedule,
    Step,
    Stepped,
    Submit,
)

ASKED = Request(prompt=(1, 2), max_new_tokens=2)
SCHEDULE = Schedule(ops=(Submit(ASKED), Step(2), Submit(ASKED), Cancel(1)))


def told(lane: Lane) -> list[list[str]]:
    """A lane in words, column by column."""
    return [[f"#{cell.request} {' '.join(cell.marks)} {cell.label}".strip() for cell in cells] for cells in lane.columns]


def lanes(picture: Timeline) -> dict[str, list[list[str]]]:
    return {lane.name: told(lane) for lane in picture.lanes}


def test_a_life_is_drawn_from_its_submit_to_its_freed_slot() -> None:
    trace: tuple[Event, ...] = (
        Asked(0),
        Asked(1),
        Stepped(0),
        Admitted(0, 3),
        Prefilled(0, 1),
        Stepped(1),
        Emitted(0, 7),
        Asked(2),
        Stepped(2),
        Admitted(1, 3, cached=1),
        Emitted(0, 8),
        Finished(0, Reason.LENGTH, (7, 8)),
        Freed(0, 3),
        Asked(3),
        Finished(1, Reason.CANCELLED, ()),
        Freed(1, 3),
    )
    picture = timeline(SCHEDULE, trace, begins_at=2)
    assert [column.name for column in picture.columns] == ["ask", "0", "1", "2"]
    assert [column.begins for column in picture.columns] == [False, False, False, True]
    assert lanes(picture) == {
        "slot 3": [[], ["#0 P"], ["#0 P 7"], ["#0 D F 8", "#1 H1 X F"]],
        "waiting": [["#0"], [], ["#1"], []],
    }


def test_two_in_one_slot_in_one_step_lie_side_by_side_and_the_column_has_room_for_both() -> None:
    trace: tuple[Event, ...] = (
        Asked(0),
        Stepped(0),
        Admitted(0, 0),
        Emitted(0, 1),
        Finished(0, Reason.LENGTH, (1,)),
        Freed(0, 0),
        Admitted(1, 0),
    )
    picture = timeline(SCHEDULE, trace)
    first, second = picture.lanes[0].columns[1]
    column = picture.columns[1]
    assert first.x == column.x >= LABEL_PX + CELL_PX
    assert first.x + first.width == second.x
    assert second.x + second.width == column.x + column.width <= picture.width
    assert column.width >= 2 * CELL_PX


def test_who_is_preempted_waits_again_and_pages_show_who_holds_them() -> None:
    holding = Holding(slot=0, owners=(0, 1), cells=2, visible=2, pages=(5,))
    audit = Audit(held=(holding,), free=(), queued=(), slots=1)
    trace: tuple[Event, ...] = (Asked(0), Stepped(0), Admitted(0, 0), Audited(audit), Stepped(1), Preempted(0, 0))
    assert lanes(timeline(SCHEDULE, trace)) == {
        "slot 0": [[], ["#0"], ["#0 E"]],
        "waiting": [["#0"], [], ["#0"]],
        "page 5": [[], ["#0", "#1"], []],
    }
