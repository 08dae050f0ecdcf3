"""Benches that load: what a run's folder comes to, and that each of them runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fuzz.commandline import Benches
from stress.benches.byte_model import save_byte_model
from stress.benches.load_command import bench_load_faults, bench_rival, bench_soak, bench_verification
from stress.benches.load_faults import TEN, Row, Table, format_row, format_table
from stress.benches.runs import first_bad_s
from stress.endpoint.tokens import ByteTokenizer, OwnTokenizer
from stress.judging.ledger import Ledger
from stress.judging.opinion import Opinion, Standing
from stress.judging.verdicts import summed
from stress.transcript import Heard, format_line
from targets.faults import FAULTS
from targets.models import Model, find_tokenizer
from targets.protocol import BadInput
from tests.stress.locusts import exchange

BENCH = Benches(
    "bench",
    commands={
        "load-faults": bench_load_faults,
        "rival": bench_rival,
        "soak": bench_soak,
        "verification": bench_verification,
    },
)


def judged(folder: Path, *standings: Standing) -> Path:
    """A run's folder with a response for each standing, the first answered after one second, the second after two."""
    (folder / "transcripts").mkdir()
    lines = [format_line(Heard(exchange=exchange(1.0 + number, number=number))) for number in range(len(standings))]
    (folder / "transcripts" / "a.jsonl").write_bytes(b"".join(lines))
    opinions = [
        Opinion(source="a", number=number, outcome="answered", standing=standing)
        for number, standing in enumerate(standings)
    ]
    with Ledger(folder / "judged.jsonl", "me") as ledger:
        ledger.add(opinions)
    verdicts = summed(opinions, in_flight=0, by="me", seconds=1.0)
    (folder / "verdicts.json").write_bytes(msgspec.json.encode(verdicts))
    return folder


def test_a_fault_is_flagged_by_the_first_response_that_is_not_right(tmp_path: Path) -> None:
    assert first_bad_s(judged(tmp_path, Standing.RIGHT, Standing.WRONG, Standing.LOST)) == 2.0


def test_nothing_is_flagged_where_all_is_right_or_unjudged(tmp_path: Path) -> None:
    assert first_bad_s(judged(tmp_path, Standing.RIGHT, Standing.UNJUDGED)) is None


def row(first_s: float | None, failing: int) -> Row:
    return Row(
        fault="late-token",
        responses=9,
        judged=8,
        wrong=2,
        lost=1,
        first_bad_s=first_s,
        repros=(("LEAK", 2),) * failing,
        failing=failing,
        seconds=7.0,
    )


def test_all_faults_must_be_flagged_and_four_fifths_shrunk() -> None:
    found, unshrunk, missed = row(1.5, 1), row(1.5, 0), row(None, 1)
    assert Table(8, 20, 1, (found,) * 8 + (unshrunk,) * 2).enough
    assert not Table(8, 20, 1, (found,) * 7 + (unshrunk,) * 3).enough
    assert not Table(8, 20, 1, (found,) * 9 + (missed,)).enough
    assert format_table(Table(8, 20, 1, (found, missed))) == (
        "8 users, 20 s each, seed 1: 1 of 2 flagged, 2 of 2 with a repro that fails in a fresh process"
    )
    assert format_row(found) == (
        "late-token               8 of 9 judged, 2 wrong, 1 lost; flagged by what came after 1.5 s; LEAK of 2 requests; "
        "1 of 1 fail in a fresh process; 7 s"
    )
    assert "NOT FLAGGED" in format_row(missed)
    assert "NO REPRO" in format_row(unshrunk)


def test_ten_faults_are_loaded_unless_others_are_named() -> None:
    assert len(set(TEN)) == 10
    assert set(TEN) <= FAULTS.keys()


def test_a_byte_is_the_same_id_for_both_servers(tiny: Model, tmp_path: Path) -> None:
    save_byte_model("tiny", "float32", tmp_path)
    theirs = OwnTokenizer(find_tokenizer(str(tmp_path)))
    ours = ByteTokenizer(320, tiny.special_ids, ())
    for text in ("hello, wörld €", "a b\n", "".join(map(chr, range(256)))):
        assert theirs.read(text) == ours.read(text)
        assert theirs.tokenizer.decode(theirs.read(text)) == text
    assert theirs.ends == (), "nothing but its length ends an answer"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("load-faults", "--seconds", "61"), "--seconds must be a number in 1..60, got 61"),
        (("soak", "--period", "1"), "--period must be a number in 4..86,400, got 1"),
        (("verification", "--rounds", "0"), "--rounds must be a whole number in 1..1,000, got 0"),
        (("rival",), "--python must be given, got nothing (see --help)"),
        (
            ("rival", "--python", "nowhere"),
            "--python must be an interpreter that has transformers[serving] installed, got nowhere",
        ),
    ],
)
def test_bad_use_is_one_sentence(words: tuple[str, ...], message: str) -> None:
    told = CliRunner().invoke(BENCH, list(words))
    assert (told.exit_code, told.output) == (2, f"{message}\n")


def test_a_folder_holds_one_bench_of_faults(tmp_path: Path) -> None:
    (tmp_path / "late-token").mkdir()
    told = CliRunner().invoke(BENCH, ["load-faults", "--fault", "late-token", "--out", str(tmp_path)])
    assert told.exit_code == 2
    assert told.output.startswith("--out must be a folder without an earlier bench in it, got ")


def test_a_model_without_ids_for_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("stress.benches.byte_model.BYTES", 400)
    with pytest.raises(BadInput, match="--model must be one with 400 ids or more for bytes, got tiny"):
        save_byte_model("tiny", "float32", tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_what_verification_costs_is_measured(tmp_path: Path) -> None:
    words = ["verification", "--users", "2", "--seconds", "2", "--rounds", "1", "--json", str(tmp_path / "figures")]
    told = CliRunner().invoke(BENCH, [*words, "--set", "slots=2"])
    assert told.exit_code == 0, told.output
    none, after, beside = msgspec.json.decode((tmp_path / "figures").read_bytes())["ways"]
    assert (none["judged"], none["throughput"]) == (0, None)
    for way in (after, beside):
        assert way["judged"] == way["responses"] > 0
        assert (way["wrong"], way["lost"], way["throughput"]["pairs"]) == (0, 0, 1)


@pytest.mark.slow
@pytest.mark.long
def test_a_short_soak_is_clean(tmp_path: Path) -> None:
    words = ["--seconds", "8", "--period", "4", "--users", "2", "--out", str(tmp_path), "--set", "slots=2"]
    told = CliRunner().invoke(BENCH, ["soak", *words])
    assert told.exit_code == 0, told.output
    assert "gauges when idle" in told.output
    assert "memory resident" in told.output
    assert "0 wrong, 0 lost, 0 unjudged" in told.output
