"""The command line: what each command prints, writes and exits with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.mechanisms import MECHANISMS
from fuzz.repro import Repro, load, save
from targets.adapters import ADAPTERS
from targets.faults import FAULTS, QUIRKS
from targets.protocol import Schedule
from targets.registry import TargetSpec

JSON_FIELDS = {
    "schedules",
    "tokens_checked",
    "seconds",
    "seconds_in_target_forwards",
    "seconds_in_reference_forwards",
    "padding_share",
    "batch_fill",
    "mechanisms",
    "suspects",
    "refuted",
    "undecided_pairs",
    "findings",
}
FINDING_FIELDS = {
    "id",
    "kind",
    "check",
    "requests",
    "ops",
    "prompt_tokens",
    "new_tokens",
    "evaluations",
    "repro",
}


def slotfuzz(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="slotfuzz")


class Done(NamedTuple):
    """A run that is over: what it printed, what it wrote."""

    result: Result
    out: Path
    json: dict[str, Any]


def ran(folder: Path, *words: object, seed: int = 1) -> Done:
    """A run into `folder`, short and with short contexts."""
    json = folder / f"{seed}.json"
    limits = ("--schedules", 12, "--seed", seed, "--set", "context_tokens_max=64")
    result = slotfuzz("run", *limits, "--out", folder / "out", "--json", json, *words)
    return Done(result, folder / "out", msgspec.json.decode(json.read_bytes()))


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run that found a planted bug."""
    return ran(tmp_path_factory.mktemp("failed"), "--fault", "late-token")


@pytest.mark.slow
def test_a_run_that_finds_something_exits_with_1_and_keeps_it(failed: Done) -> None:
    assert failed.result.exit_code == 1, failed.result.output
    findings = failed.json["findings"]
    assert {Path(finding["repro"]) for finding in findings} == set((failed.out / "repros").iterdir())
    for finding in findings:
        path = Path(finding["repro"])
        repro = load(path)
        assert path.name == f"{repro.id}.json"
        assert (repro.id, repro.finding.kind, repro.finding.check) == (finding["id"], finding["kind"], finding["check"])
        assert repro.seed == 1
    assert not [path for path in failed.out.rglob("*") if path.is_file() and path.parent.name != "repros"]


@pytest.mark.slow
def test_a_run_prints_its_seed_and_every_setting_before_and_the_failure_after(failed: Done) -> None:
    lines = failed.result.stdout.splitlines()
    assert lines[0] == "seed 1, 12 schedules"
    assert lines[1].endswith(", planted: late-token")
    assert "  context_tokens_max   64 tokens" in lines
    assert "  dtype                float64" in lines
    assert any(line.startswith("LEAK  request #") for line in lines)
    assert any(line.startswith("      0  submit #0  prompt [1]") for line in lines)


@pytest.mark.slow
def test_the_printed_command_replays_the_failure(failed: Done) -> None:
    last = failed.result.stdout.rstrip().splitlines()[-1]
    assert last.startswith("next: slotfuzz replay ")
    _, _, *words = shlex.split(last.removeprefix("next: "))
    again = slotfuzz("replay", *words)
    assert again.exit_code == 1
    assert len(re.findall(r"^FAILED  .*\(bit for bit\)$", again.stdout, re.MULTILINE)) == len(failed.json["findings"])


@pytest.mark.slow
def test_the_json_has_every_field_that_the_design_names(failed: Done) -> None:
    assert set(failed.json) >= JSON_FIELDS
    assert set(failed.json["mechanisms"]) >= set(MECHANISMS)
    assert failed.json["schedules"] == 12
    assert failed.json["tokens_checked"] > 0
    forwards = failed.json["seconds_in_target_forwards"] + failed.json["seconds_in_reference_forwards"]
    assert 0 < forwards < failed.json["seconds"]
    for finding in failed.json["findings"]:
        assert set(finding) >= FINDING_FIELDS


@pytest.mark.slow
def test_a_second_run_into_the_same_folder_leaves_the_first_one_s_repros_alone(failed: Done) -> None:
    before = {path.name: path.read_bytes() for path in (failed.out / "repros").iterdir()}
    second = ran(failed.out.parent, "--fault", "late-token", seed=2)
    assert second.result.exit_code == 1, second.result.output
    after = {path.name: path.read_bytes() for path in (failed.out / "repros").iterdir()}
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_a_clean_run_exits_with_0_and_says_what_it_shows(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert done.result.exit_code == 0, done.result.output
    assert done.json["findings"] == []
    assert done.json["verdict"] == "PASS"
    assert re.search(r"^nothing found: .* 0\.25 .*3/n", done.result.stdout, re.MULTILINE)
    last = done.result.stdout.rstrip().splitlines()[-1]
    expected = f"next: slotfuzz run --schedules 12 --set context_tokens_max=64 --seed 2 --out {done.out}"
    assert last == expected
    assert not done.out.exists()


@pytest.mark.slow
def test_a_sanitized_run_says_what_it_looked_at(tmp_path: Path) -> None:
    clean = ran(tmp_path, "--sanitize", "--schedules", 4)
    assert clean.result.exit_code == 0, clean.result.output
    assert clean.json["cells"] > clean.json["tokens_checked"]
    assert clean.json["poisoned"] > 0
    assert re.search(
        r"^sanitizer: \d+ cells looked at; poisoned replays: \d+ compared, 0 undecided$", clean.result.stdout, re.M
    )
    assert "--set sanitize=True" in clean.result.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_run_that_is_not_sanitized_looks_at_no_cell(failed: Done) -> None:
    assert (failed.json["cells"], failed.json["poisoned"]) == (0, 0)
    assert "sanitizer:" not in failed.result.stdout


def test_a_model_that_is_mute_cannot_pass(tmp_path: Path) -> None:
    words = ("--target", "tests.fuzz.scripted:honest", "--schedules", 3, "--seed", 1, "--out", tmp_path / "out")
    words = (*words, "--in-process")
    result = slotfuzz("run", *words)
    assert result.exit_code == 3, result.output
    assert "which is under 75%: a pass would mean nothing, so none is given" in result.stdout
    assert "nothing found" not in result.stdout


@pytest.mark.slow
def test_a_finding_convicts_even_where_a_pass_would_mean_nothing(tmp_path: Path) -> None:
    words = ("--target", "tests.fuzz.scripted:crowded", "--schedules", 30, "--seed", 1, "--out", tmp_path / "out")
    words = (*words, "--in-process")
    result = slotfuzz("run", *words)
    assert result.exit_code == 1, result.output
    assert "CRASHED  step raised IndexError: row 2 is out of range" in result.stdout
    assert f"next: slotfuzz replay --target tests.fuzz.scripted:crowded {tmp_path}" in result.stdout


@pytest.mark.slow
def test_replay_tells_failed_from_fixed_and_the_worst_decides_the_exit_code(repro: Repro, tmp_path: Path) -> None:
    bad = save(repro, tmp_path)
    mended = tmp_path / "mended.json"
    mended.write_bytes(msgspec.json.encode(msgspec.structs.replace(repro, target=TargetSpec())))
    outcomes = tmp_path / "outcomes.json"
    both = slotfuzz("replay", mended, bad, "--json", outcomes)
    assert both.exit_code == 1
    assert both.stdout.splitlines()[0] == f"FIXED   {mended}  (with other bits)"
    assert both.stdout.splitlines()[1] == f"FAILED  {bad}  (bit for bit)"
    rows = msgspec.json.decode(outcomes.read_bytes())
    assert [(row["repro"], row["outcome"], row["same_bits"]) for row in rows] == [
        (str(mended), "FIXED", False),
        (str(bad), "FAILED", True),
    ]
    assert slotfuzz("replay", mended).exit_code == 0
    assert slotfuzz("replay", mended, bad, tmp_path / "nobody.json").exit_code == 2


def test_faults_lists_every_planted_bug() -> None:
    rows = msgspec.json.decode(slotfuzz("faults", "--json").stdout)
    assert [row["name"] for row in rows] == list(FAULTS)
    for row in rows:
        assert {"class", "modelled_on", "smallest", "checks", "kinds"} <= set(row)
        assert set(row["smallest"]) == set(row["kinds"])
        for schedule in row["smallest"].values():
            msgspec.convert(schedule, Schedule)
    text = slotfuzz("faults").stdout
    assert all(f"{name}  (" in text for name in FAULTS)
    assert all(f"{name}  (rounding; no bug: nothing may be found)" in text for name in QUIRKS)


def test_targets_lists_the_built_in_ones_with_their_knobs() -> None:
    row, pages, private, threads, *others = msgspec.json.decode(slotfuzz("targets", "--json").stdout)
    assert [each["name"] for each in (row, pages, private, threads)] == ["slots", "pages", "private", "threads"]
    assert [each["name"] for each in others] == ["static", "packed", "encoder", "seq2seq", "pictures", *ADAPTERS]
    assert all(each["installed"] for each in (row, pages, private, threads))
    assert {"page_size", "prefix_cache", "preempt"} <= {knob["name"] for knob in pages["knobs"]}
    wanted = {"rows", "forced", "logits", "audit", "float64", "stepped", "tags", "poison", "poison_nan", "inspect", "shares"}
    wanted |= {"sampling", "noise", "life_cycles", "salts", "told", "rounding", "ends", "gives_up", "in_a_row", "joins"}
    assert wanted == set(row["control"])
    assert {"slots", "slot_order", "dtype", "device"} <= {knob["name"] for knob in row["knobs"]}
    assert "  slots = 4  (1..1024)  requests that have state at once" in slotfuzz("targets").stdout


@pytest.mark.slow
def test_bench_speed_writes_its_figures(tmp_path: Path) -> None:
    result = slotfuzz("bench", "speed", "--schedules", 4, "--json", tmp_path / "speed.json")
    assert result.exit_code == 0, result.output
    figures = msgspec.json.decode((tmp_path / "speed.json").read_bytes())
    assert figures["schedules"] == 4
    assert figures["tokens a second, with the swap"] > 0


@pytest.mark.slow
def test_bench_sanitize_measures_the_same_schedules_both_ways() -> None:
    result = slotfuzz("bench", "sanitize", "--schedules", 4)
    assert result.exit_code == 0, result.output
    figures = {line[:44].strip(): float(line[44:]) for line in result.stdout.splitlines()}
    assert figures["sanitized against plain"] > 0
    assert figures["cells looked at a schedule"] > 0
    assert figures["poisoned replays compared"] > 0
    assert figures["findings"] == 0


def test_a_run_stopped_before_anything_was_judged_says_so_and_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuzz.run.run_trio", interrupted)
    told = slotfuzz("run", "--target", "tests.fuzz.scripted:honest", "--in-process", "--seed", 5, "--out", tmp_path / "out")
    assert told.exit_code == 130
    stopped, again = told.stdout.splitlines()[-2:]
    assert stopped == "stopped before any schedule was judged"
    assert again.startswith("next: slotfuzz run --target tests.fuzz.scripted:honest ")
    assert "--seed 5 " in again
