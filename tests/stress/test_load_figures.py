"""Figures: latencies, goodput and what was lost, and that a run with anything wrong does not end with zero."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from stress.load.ending import check_folder, conclude, note_plan
from stress.load.figures import BESIDE_NOISE, QUIET, figures_of
from stress.load.gauged import Gauged, read_gauges
from stress.load.latency import latency_of, misses
from stress.load.plan import Slo
from stress.load.tally import tally
from stress.transcript import Begun, Exchange, Heard, Usage, format_line
from targets.protocol import BadInput, Request
from tests.stress.locusts import exchange, planned


def store(folder: Path, *lines: Exchange | Begun, name: str = "0-1-0") -> None:
    transcripts = folder / "transcripts"
    transcripts.mkdir(exist_ok=True)
    told = [line if isinstance(line, Begun) else Heard(exchange=line) for line in lines]
    (transcripts / f"{name}.jsonl").write_bytes(b"".join(map(format_line, told)))


def test_times_are_those_of_a_stopwatch() -> None:
    latency = latency_of(exchange(0.25, 0.5, 1.0))
    assert latency is not None
    assert (latency.ttft_ms, latency.itl_ms_max, latency.tpot_ms, latency.e2e_ms) == (250.0, 500.0, 375.0, 1000.0)
    assert (latency.tokens, latency.tokens_per_s) == (3, 3.0)


def test_an_answer_without_ids_has_as_many_tokens_as_the_endpoint_counts() -> None:
    latency = latency_of(exchange(0.5, 1.0, usage=Usage(1, 7)))
    assert latency is not None
    assert latency.tokens == 7
    assert latency_of(exchange(outcome="refused")) is None


@pytest.mark.parametrize(
    ("slo", "missed"),
    [
        (Slo(ttft_ms=250), ""),
        (Slo(ttft_ms=249), "TTFT over 249 ms"),
        (Slo(itl_ms=499), "ITL over 499 ms"),
        (Slo(tpot_ms=374), "TPOT over 374 ms"),
        (Slo(e2e_ms=999), "end to end over 999 ms"),
        (Slo(ttft_ms=250, itl_ms=500, tpot_ms=375, e2e_ms=1000), ""),
    ],
)
def test_an_slo_is_kept_or_missed_at_its_edge(slo: Slo, missed: str) -> None:
    heard = exchange(0.25, 0.5, 1.0)
    assert misses(heard, latency_of(heard), slo) == missed
    refused = exchange(outcome="refused")
    assert misses(refused, None, slo) == "refused"


def test_goodput_counts_who_kept_the_slo_and_was_right(tmp_path: Path) -> None:
    late, soon = exchange(0.9, number=0), exchange(0.1, number=1)
    store(tmp_path, late, soon, exchange(0.2, number=2), exchange(number=3, outcome="cancelled"))
    good = figures_of(tmp_path, Slo(ttft_ms=500), {("0-1-0", 0), ("0-1-0", 1)}).goodput
    assert good is not None
    assert (good.asked, good.kept, good.correct, good.missed) == (3, 2, 1, {"TTFT over 500 ms": 1})
    nobody = figures_of(tmp_path, Slo(ttft_ms=500), None).goodput
    assert nobody is not None
    assert nobody.correct is None


def test_lost_is_what_was_cut_or_never_ended(tmp_path: Path) -> None:
    asked = Request(prompt=(1,), max_new_tokens=1)
    begun = [Begun(number=number, user="visitor", request=asked, sent_s=0.0) for number in range(5)]
    store(
        tmp_path,
        *begun,
        exchange(0.5, number=0),
        exchange(0.5, number=1, outcome="cut", error="it broke"),
        exchange(number=2, outcome="unreached", status=0),
        exchange(number=3, outcome="failed", status=500),
    )
    account = figures_of(tmp_path, Slo(), None).account
    assert (account.sent, account.answered, account.failed, account.unreached) == (5, 1, 1, 1)
    assert (account.lost, account.cut, account.unheard) == (2, 1, 1)
    assert [(lost.number, lost.heard_tokens, lost.error) for lost in account.in_flight] == [
        (1, 1, "it broke"),
        (4, 0, "no end was written down"),
    ]


def test_a_victim_is_compared_with_itself(tmp_path: Path) -> None:
    quiet = [msgspec.structs.replace(exchange(0.1, 0.2), user=QUIET)]
    noise = [msgspec.structs.replace(exchange(0.3, 0.8), user=BESIDE_NOISE)]
    store(tmp_path, *quiet, *noise)
    disturbed = figures_of(tmp_path, Slo(), None).noise
    assert disturbed is not None
    assert (round(disturbed.ttft_p50, 3), round(disturbed.itl_p99, 3)) == (3.0, 5.0)


class Row:
    """A row of locust's statistics, as it is used here."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.failures = 0

    def log(self, response_time: int, content_length: int) -> None:
        self.values.append(response_time)

    def log_error(self, error: Exception | str | None) -> None:
        self.failures += 1


class Rows(defaultdict[tuple[str, str], Row]):
    """Locust's statistics, as they are used here."""

    def get(self, name: str, method: str) -> Row:  # type: ignore[override]
        return self[name, method]


def test_locusts_rows_have_each_figure() -> None:
    rows = Rows(Row)
    tally(rows, "visitor", exchange(0.25, 0.5, 1.0), Slo(ttft_ms=200))
    tally(rows, "visitor", exchange(0.1, outcome="cancelled"), Slo(ttft_ms=200))
    assert {name: row.values for (_, name), row in rows.items()} == {
        "tokens/s": [3],
        "TTFT": [250],
        "ITL": [250, 500],
        "TPOT": [375],
        "SLO": [1000],
    }
    assert rows["visitor", "SLO"].failures == 1


HELD = Gauged(
    looks=9,
    peaks={},
    idle_looks=2,
    held_idle={"slotfuzz_slots_used": 1.0},
    memory_first_bytes={},
    memory_last_bytes={},
    memory_max_bytes={},
)


@pytest.mark.parametrize(
    ("outcome", "held", "judge", "code"),
    [
        ("answered", False, 0, 0),
        ("cut", False, 0, 1),
        ("answered", True, 0, 1),
        ("answered", False, 1, 1),
        ("answered", False, 2, 3),
        ("answered", False, 3, 3),
        ("refused", False, 0, 0),
        ("unreached", False, 0, 3),
    ],
)
def test_a_run_with_anything_wrong_lost_held_or_unjudged_does_not_end_with_zero(
    tmp_path: Path, outcome: str, held: bool, judge: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(out=str(tmp_path))
    store(tmp_path, exchange(0.5, outcome=outcome))
    asked = []

    def judges(folder: Path, words: tuple[str, ...]) -> int:
        asked.append(folder)
        return judge

    assert conclude(plan, HELD if held else None, 0, judges) == code
    assert asked == [tmp_path]
    ended = json.loads((tmp_path / "load.json").read_bytes())
    assert (ended["verified"], ended["figures"]["account"]["sent"]) == (judge, 1)
    assert ("NOT given back: slotfuzz_slots_used 1" in capsys.readouterr().out) is held


def test_nobody_judges_where_nobody_should(tmp_path: Path) -> None:
    store(tmp_path, exchange(0.5))
    assert conclude(planned(out=str(tmp_path), no_verify=True), None, 0, lambda *_: 1) == 0


def test_what_was_judged_right_is_read_from_the_judges_ledger(tmp_path: Path) -> None:
    store(tmp_path, exchange(0.1, number=0), exchange(0.1, number=1))
    lines = [{"by": "me"}] + [
        {"source": "0-1-0", "number": number, "outcome": "answered", "standing": standing}
        for number, standing in enumerate(("right", "wrong"))
    ]
    (tmp_path / "judged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert conclude(planned(out=str(tmp_path), slo_ttft_ms="500"), None, 0, lambda *_: 1) == 1
    good = json.loads((tmp_path / "load.json").read_bytes())["figures"]["goodput"]
    assert (good["kept"], good["correct"]) == (2, 1)


def test_a_folder_holds_one_run_and_never_a_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret-secret")
    plan = planned(out=str(tmp_path), api_key_file=str(tmp_path / "key"))
    check_folder(plan)
    note_plan(plan, "tiny")
    assert "secret" not in (tmp_path / "run.json").read_text()
    store(tmp_path, exchange(0.5))
    with pytest.raises(BadInput, match="--out must be a folder without another run in it, got "):
        check_folder(plan)


def test_gauges_are_read_off_a_page() -> None:
    page = b'# HELP a b\nslots 3.0\nended_total{outcome="stop"} 2\nended_total{outcome="length"} 5\nodd line x\n'
    assert read_gauges(page) == {"slots": 3.0, "ended_total": 7.0}
