"""Where a failure began, in every way in which the decoder runs: pages, pieces, steps in flight, rings and padded batches.

A clean request is followed through each without a departure, and a planted bug has the site that it has in slots.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from fuzz.explain import CellTable, _table
from fuzz.watch import StepCells
from oracle.attention import Attention
from oracle.where import Expected, departure
from targets.decoder import DECODERS, DecoderFactory
from targets.faults import FAULTS
from targets.models import Model, find_model
from targets.protocol import Cancel, Kind, Op, Request, Schedule, Setting, Step, Submit, submissions
from tests.fuzz.test_locate import located, watch

PROMPT = tuple(range(20, 31))
SMALL: dict[str, Setting] = {"page_size": 4, "pool_tokens": 32}


def ask(*prompt: int, new: int = 4, **extras: object) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, **extras))  # type: ignore[arg-type]


CROWD = tuple(ask(*range(start, start + 9), new=10) for start in (20, 40, 60))
LIFE: tuple[Op, ...] = (
    ask(*PROMPT, new=6),
    ask(1, new=9),
    Step(2),
    ask(*PROMPT[:9], 5, new=4),
    ask(*range(60, 72), new=8, stop=tuple(range(320))),
    Step(3),
    Cancel(1),
    ask(*range(90, 119), new=5),
)
"""Somebody begins as another did, one stops at once, one is cancelled, and one has a prompt longer than a window."""
MODES: dict[str, tuple[str, str, dict[str, Setting], tuple[Op, ...]]] = {
    "what an ended request left": (
        "tiny",
        "pages",
        {"page_size": 4},
        (ask(*PROMPT), Step(5), ask(*PROMPT, 5), ask(*PROMPT[:6], 9)),
    ),
    "answers to one prompt": ("tiny", "pages", {"page_size": 4}, (ask(*PROMPT), ask(*PROMPT, sample_of=0, forced=(3,)))),
    "preempted": ("tiny", "pages", {**SMALL, "prefix_cache": False}, CROWD),
    "preempted, found again": ("tiny", "pages", SMALL, CROWD),
    "preempted, moved": ("tiny", "pages", {**SMALL, "preempt": "move"}, CROWD),
    "pieces": ("tiny", "slots", {"step_tokens_max": 4}, LIFE),
    "in flight": ("tiny", "slots", {"pipelined": True}, LIFE),
    "padded": ("tiny", "slots", {"pad_batch": True}, LIFE),
    "guesses": ("tiny", "slots", {"speculate": 4}, (ask(200, new=9), Step(1), ask(152, new=8), ask(*PROMPT))),
    "private": ("tiny", "private", {"growth": "cat"}, LIFE),
    "a ring": ("tiny-mistral", "slots", {"window": "ring", "ring_append_max": 4}, LIFE),
    "rings and full layers": ("tiny-gemma3", "slots", {"window": "ring", "ring_append_max": 1}, LIFE),
    "everything": (
        "tiny",
        "pages",
        {**SMALL, "pool_tokens": 48, "pipelined": True, "step_tokens_max": 8, "pad_batch": True, "slots": 3},
        LIFE,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_nothing_departs_on_a_clean_target(mode: str) -> None:
    model, target, settings, ops = MODES[mode]
    schedule = Schedule(ops=ops, settings=settings)
    for victim in range(len(submissions(schedule))):
        seen = watch(DecoderFactory(find_model(model), name=target), schedule, victim)
        assert (seen.found, seen.why) == (None, ""), victim
        assert seen.steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name", "kind", "site"),
    [
        ("in flight", "late-token", Kind.LEAK, "result: another request's, of an earlier step"),
        ("a ring", "late-token", Kind.LEAK, "result: another request's, of an earlier step"),
        ("everything", "late-token", Kind.LEAK, "result: another request's, of an earlier step"),
        ("everything", "mask-to-longest", Kind.INTERFERENCE, "mask: cells that are not its own"),
        ("pieces", "mask-to-longest", Kind.INTERFERENCE, "mask: cells that are not its own"),
        ("padded", "position-of-longest", Kind.INTERFERENCE, "query: position"),
        ("a ring", "mask-too-short", Kind.WRONG_ALONE, "mask: own cells missing"),
    ],
)
def test_a_planted_bug_has_the_site_that_it_has_in_slots(mode: str, name: str, kind: Kind, site: str) -> None:
    model, target, settings, ops = MODES[mode]
    schedule = Schedule(ops=(*ops, ask(8, new=5), ask(9, 9, new=12), ask(9, 9, 8, new=3)), settings=settings)
    factory = DecoderFactory(find_model(model), FAULTS[name].plant(DECODERS[target]), target)
    found = located(factory, schedule, kind)
    assert found.where is not None, found.why
    assert found.where.site == site


@pytest.mark.slow
def test_a_cell_of_a_ring_that_is_wrong_is_found_where_it_is(tiny: Model) -> None:
    """The control of those in a ring: K of one position is changed, and that position is named."""
    factory = DecoderFactory(find_model("tiny-mistral"))
    schedule = Schedule(ops=(ask(*range(20, 49), new=6),), settings={"window": "ring", "ring_append_max": 4})

    class Spoiling(DecoderFactory):
        def open(self, settings: Mapping[str, Setting]):  # type: ignore[no-untyped-def]
            decoder = super().open(settings)
            step = decoder.step

            def spoilt(rows: tuple[int, ...] | None = None):  # type: ignore[no-untyped-def]
                if decoder.store.lengths[0] == 29:
                    decoder.store.keys[1][0, 0, 25 % 19] += 1.0  # type: ignore[attr-defined]
                return step(rows)

            decoder.step = spoilt  # type: ignore[method-assign]
            return decoder

    seen = watch(Spoiling(factory.model), schedule, 0)
    assert seen.found is not None
    assert (seen.found.part, seen.found.layer, seen.found.cell) == ("K", 1, 25)


def ring(positions: int, room: int, turned: bool) -> tuple[Attention, Attention]:
    """The reference's last query over so many positions, and the same in fewer cells, moved up or as a ring."""
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn((1, 1, positions, 2), generator=generator, dtype=torch.float64) for _ in range(2))
    query = torch.randn((1, 1, positions, 2), generator=generator, dtype=torch.float64)
    visible = torch.ones((positions, positions), dtype=torch.bool).tril().triu(1 - room)[None, None]
    whole = Attention(query, keys, values, visible, None)
    weights = whole.weights
    assert weights is not None
    whole = Attention(query, keys, values, visible, weights @ values)
    by = positions % room if turned else 0
    last = [each[:, :, positions - room :].roll(by, 2) for each in (keys, values)]
    row = whole.stretch(positions - 1, 1)
    return whole, Attention(row.queries, last[0], last[1], visible[:, :, -1:, positions - room :], row.output)


@pytest.mark.parametrize("positions", [7, 8, 9])
@pytest.mark.parametrize("turned", [False, True])
def test_a_row_that_dropped_old_cells_agrees_in_either_order_and_a_wrong_one_is_named(positions: int, turned: bool) -> None:
    whole, row = ring(positions, 4, turned)
    assert departure(Expected([whole], {}), [row], positions - 1, 1, told=True) is None
    assert row.keys is not None
    at = (positions - 2) % 4 if turned else 2
    row.keys[0, 0, at] += 1.0
    found = departure(Expected([whole], {}), [row], positions - 1, 1, told=True)
    assert found is not None
    assert (found.part, found.cell) == ("K", positions - 2)


def cells(*steps: tuple[int, int]) -> list[StepCells]:
    """Steps of so many tokens, and the checksum of each."""
    return [StepCells(number, tokens, tokens, (checksum,)) for number, (tokens, checksum) in enumerate(steps)]


def test_a_step_is_held_against_the_one_alone_that_had_run_as_many_tokens() -> None:
    lines = _table(CellTable(cells((4, 11), (8, 22), (10, 33)), cells((8, 22), (10, 33))))
    assert not any("departs" in line for line in lines)
    assert lines[-2:] == [
        "The same in the 2 of 3 steps that can be compared: its cells are as alone.",
        "-: alone, it runs other numbers of tokens at a time.",
    ]
    lines = _table(CellTable(cells((4, 11), (8, 22), (10, 33)), cells((8, 22), (10, 34))))
    assert [line.split()[1] for line in lines if "departs" in line] == ["10"]


def test_nothing_is_called_the_same_where_nothing_can_be_compared() -> None:
    lines = _table(CellTable(cells((3, 1)), cells((5, 1))))
    assert lines[-1] == "-: alone, it runs other numbers of tokens at a time."
    assert not any("The same" in line for line in lines)


def test_a_request_beside_a_prompt_has_the_checksums_that_it_has_alone(tiny: Model) -> None:
    """A forward with a prompt repeats the heads of its keys for their queries, one of single tokens does not."""
    factory = DecoderFactory(tiny)
    alone = watch(factory, Schedule(ops=(ask(1, new=3),)), 0)
    beside = watch(factory, Schedule(ops=(ask(1, new=3), Step(), ask(*PROMPT))), 0)
    assert alone.steps == beside.steps
