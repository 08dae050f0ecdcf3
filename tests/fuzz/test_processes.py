"""Runs as processes of their own: stopped by the user, and two at once in one folder."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.repro import load

ROOT = Path(__file__).parents[2]


def command(target: str, schedules: int, out: Path, *words: object) -> list[str]:
    """`slotfuzz run` on a target of `tests.fuzz.scripted`."""
    limits = ["--schedules", str(schedules), "--seed", "1", "--out", str(out), "--in-process"]
    return [sys.executable, "-m", "fuzz", "run", "--target", f"tests.fuzz.scripted:{target}", *limits, *map(str, words)]


@pytest.mark.slow
def test_a_run_that_is_interrupted_keeps_what_it_found_and_says_how_to_go_on(tmp_path: Path) -> None:
    out, json = tmp_path / "out", tmp_path / "run.json"
    # The target types Ctrl-C itself, long after the first failure: it always comes at the same point.
    words = command("interrupting", 100_000, out, "--json", json)
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.returncode == 1
    (path,) = (out / "repros").iterdir()
    assert load(path).finding.what == "step raised IndexError: row 2 is out of range"
    assert json.is_file()
    lines = ended.stdout.rstrip().splitlines()
    assert lines[-2] == "stopped; what was found is kept"
    assert lines[-1].startswith("next: slotfuzz run --target tests.fuzz.scripted:interrupting --schedules 100000 ")
    go_on = shlex.split(lines[-1])
    assert go_on[go_on.index("--seed") + 1] == "2"
    assert go_on[go_on.index("--out") + 1] == str(out)


@pytest.mark.slow
def test_two_runs_at_once_into_one_folder_both_keep_what_they_found(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen(
            command("crowded", 40, tmp_path / "out"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    told = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [1, 1], told
    (path,) = (tmp_path / "out" / "repros").iterdir()
    assert all(f"next: slotfuzz replay --target tests.fuzz.scripted:crowded {path}" in text for text in told)
