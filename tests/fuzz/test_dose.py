"""Dose and response: whom a leak of known size reaches, who notices, and whether its source is named right."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.conductor import replay
from fuzz.dose import WAYS, Naming, Response, crowd, holds, naming, responses
from fuzz.dose_picture import HEADING, draw, format_naming, format_response
from targets.decoder import DecoderFactory
from targets.faults.dose import LeakingStore, Leaks, leaking
from targets.models import Model, find_model
from targets.protocol import Request, Schedule, Step, Submit, emitted_by_submission, submissions
from tests.oracle.handmade import asked


def dose(*words: object) -> Result:
    return CliRunner().invoke(main, ["bench", "dose", *map(str, words)], prog_name="slotfuzz")


def leaks_of(
    model: Model, share: float, schedule: Schedule, dtype: str = "float64"
) -> tuple[Leaks, dict[int, torch.Tensor]]:
    """The record of one replay, and each request's last logits."""
    leaks = Leaks()
    factory = DecoderFactory(model, leaking(share, leaks))
    trace = replay(factory, msgspec.structs.replace(schedule, settings={**schedule.settings, "dtype": dtype}))
    last = {who: events[-1].logits for who, events in emitted_by_submission(trace).items()}
    return leaks, {who: logits for who, logits in last.items() if logits is not None}


def response(share: float, exposed: int, swap: int) -> Response:
    return Response(
        dtype="float32", share=share, exposed=exposed, lost=0, seen=dict.fromkeys(WAYS, 0) | {"swap": swap}, undecided=0
    )


def test_a_leak_goes_round_in_a_ring_so_that_no_row_is_immune(tiny: Model) -> None:
    leaks, _ = leaks_of(tiny, 0.1, asked((1, 2), (3, 4), (5, 6), new=1))
    assert leaks.sources == {0: {2}, 1: {0}, 2: {1}}
    assert leaks.tried == {0, 1, 2}
    assert leaks.lost == set()


def test_who_is_alone_is_not_exposed(tiny: Model) -> None:
    leaks, _ = leaks_of(tiny, 1.0, asked((1, 2), new=4))
    assert (leaks.sources, leaks.tried) == ({}, set())


def test_a_share_of_nothing_changes_no_bit(tiny: Model) -> None:
    schedule = asked((1, 2), (3, 4, 5), new=2)
    leaks, told = leaks_of(tiny, 0.0, schedule)
    _, leaked = leaks_of(tiny, 0.5, schedule)
    trace = replay(DecoderFactory(tiny), schedule)
    clean = {who: events[-1].logits for who, events in emitted_by_submission(trace).items()}
    assert leaks.sources == {}
    assert all(torch.equal(told[who], logits) for who, logits in clean.items() if logits is not None)
    assert not any(torch.equal(leaked[who], logits) for who, logits in clean.items() if logits is not None)


def test_a_leak_that_is_rounded_away_where_it_happens_is_lost_and_no_exposure(tiny: Model) -> None:
    schedule = asked((1,), (2,), new=1)
    leaks, _ = leaks_of(tiny, 1e-9, schedule, "bfloat16")
    assert (leaks.sources, leaks.lost) == ({}, {0, 1})
    leaks, _ = leaks_of(tiny, 1e-9, schedule, "float64")
    assert (leaks.sources, leaks.lost) == ({0: {1}, 1: {0}}, set())


def test_only_cells_that_both_rows_own_are_touched(tiny: Model) -> None:
    """Slot 1 held a long request before; what it left behind must not come across, or the record would miss a source."""
    leaks = Leaks()
    parts = leaking(1.0, leaks)
    assert issubclass(parts.store, LeakingStore)
    long = Submit(Request(prompt=tuple(range(1, 9)), max_new_tokens=1))

    def last_of_two(earlier: tuple[int, ...]) -> dict[int, torch.Tensor]:
        first = msgspec.structs.replace(long, request=msgspec.structs.replace(long.request, prompt=earlier))
        schedule = Schedule(
            ops=(first, *asked(tuple(range(20, 30)), (2,), new=1).ops), settings={"slots": 2, "admit_max": 1}
        )
        return leaks_of(tiny, 1.0, schedule)[1]

    one, other = last_of_two(tuple(range(1, 9))), last_of_two(tuple(range(31, 39)))
    assert torch.equal(one[2], other[2])


@pytest.mark.slow
def test_cells_behind_a_sliding_window_are_neither_touched_nor_counted() -> None:
    long, short = asked(tuple(range(1, 25)), new=3), asked((30,), new=1)
    schedule = Schedule(ops=(*long.ops, Step(), *short.ops))
    leaks, _ = leaks_of(find_model("tiny-gemma3"), 1.0, schedule)
    assert (leaks.sources, leaks.tried) == ({1: {0}}, {1}), "#0 no longer sees the one cell that #1 has as well"


def test_a_crowd_overlaps_and_says_only_what_it_was_told(slots: DecoderFactory) -> None:
    for seed in range(8):
        schedule = crowd(slots, seed, "float64")
        requests = submissions(schedule)
        assert 3 <= len(requests) <= 6
        trace = emitted_by_submission(replay(slots, schedule))
        assert {who: tuple(event.token for event in events) for who, events in trace.items()} == {
            who: request.forced for who, request in enumerate(requests)
        }


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_swap_sees_every_exposure_to_a_thousandth_in_every_dtype(tiny: Model, dtype: str) -> None:
    clean, little = responses(tiny, 4, [dtype], [0.0, 1e-3])
    assert clean.seen["swap"] == clean.seen["logits"] == 0, "nothing is seen where nothing leaks"
    assert clean.exposed == little.exposed + little.lost > 5
    assert little.exposed == little.seen["swap"] > 5
    assert little.seen["regret"] < little.seen["swap"], "tokens alone would have missed it"


@pytest.mark.slow
def test_every_source_of_a_leak_is_named_and_no_other(tiny: Model) -> None:
    named = naming(tiny, 4)
    assert named.right == named.leaks > 10
    assert named.sources > named.leaks, "some victims have several"


@pytest.mark.slow
def test_a_wrong_record_would_not_equal_what_is_named(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The should-fail control: the row behind instead of the row before."""

    def note(self: Leaks, victim: int, source: int, changed: bool) -> None:
        self.tried.add(victim)
        self.sources.setdefault(source, set()).add(victim)

    monkeypatch.setattr(Leaks, "note", note)
    named = naming(tiny, 2)
    assert named.right < named.leaks


@pytest.mark.parametrize(
    ("measured", "named", "whether"),
    [
        ([response(0.0, 9, 0), response(1e-3, 9, 9), response(1e-4, 9, 8)], Naming(3, 3, 4), True),
        ([response(1e-3, 9, 8)], Naming(3, 3, 4), False),
        ([response(0.0, 9, 1)], Naming(3, 3, 4), False),
        ([response(1.0, 9, 9)], Naming(3, 2, 4), False),
        ([response(1.0, 9, 9)], Naming(0, 0, 0), False),
    ],
    ids=["as promised", "one missed", "a false alarm", "a source misnamed", "nothing to name"],
)
def test_what_is_promised_is_held_or_not(measured: list[Response], named: Naming, whether: bool) -> None:
    assert holds(measured, named) is whether


def test_a_line_stands_under_its_heading_and_never_rounds_up() -> None:
    line = format_response(response(1e-3, 2000, 1999))
    assert len(line) == len(HEADING)
    assert "1999  99.9%" in line
    assert format_response(response(0.0, 0, 0)).split()[:3] == ["float32", "clean", "0"]
    assert format_naming(Naming(3, 2, 4)) == "sources named right: 2 of 3 leaks, from 4 sources in all"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn_into_a_file_of_the_kind_its_name_says(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"dose{suffix}"
    pairs = itertools.product(("float64", "bfloat16", "float16"), (0.0, 1e-3, 1.0))
    draw([msgspec.structs.replace(response(share, 5, 5), dtype=dtype) for dtype, share in pairs], "tiny", path)
    start = path.read_bytes()[:300]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in path.read_bytes()[:900]


def test_a_picture_is_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is measured")

    monkeypatch.setattr("fuzz.dose.responses", never)
    wrong = dose("--plot", tmp_path / "dose.jpg")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        f"--plot must be a file that ends in .png or .svg, got {tmp_path / 'dose.jpg'}\n",
    )
    folder = dose("--plot", tmp_path / "nowhere" / "dose.png")
    assert folder.exit_code == 2
    assert folder.stderr.startswith("--plot must be a plain file in a folder that exists, got ")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest))
    missing = dose("--plot", tmp_path / "dose.png")
    assert missing.exit_code == 2
    assert missing.stderr == (
        f"--plot must be left out without matplotlib (pip install 'slotfuzz[plot]'), got {tmp_path / 'dose.png'}\n"
    )
    assert dose("--dtype", "int8").stderr == "--dtype must be one of float64, float32, bfloat16, float16, got int8\n"


@pytest.mark.slow
def test_bench_dose_prints_stores_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.dose.NAMED_SCHEDULES", 2)
    data, picture = tmp_path / "dose.json", tmp_path / "dose.svg"
    result = dose("--schedules", 1, "--dtype", "float64", "--json", data, "--plot", picture)
    assert result.exit_code == 0, result.output
    figures = msgspec.json.decode(data.read_bytes())
    rows = [msgspec.convert(row, Response) for row in figures["responses"]]
    assert [row.share for row in rows] == [0.0, 1.0, 0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6]
    assert result.stdout.splitlines()[1:9] == [format_response(row) for row in rows]
    assert picture.stat().st_size > 1000
