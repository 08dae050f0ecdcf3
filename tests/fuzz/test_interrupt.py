"""Ctrl-C: the run ends, what it found is kept, and the command to go on with is printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.repro import load

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_that_is_interrupted_keeps_what_it_found_and_says_how_to_go_on(tmp_path: Path) -> None:
    out, json = tmp_path / "out", tmp_path / "run.json"
    # The target types Ctrl-C itself, long after the first failure: it always comes at the same point.
    words = ["--target", "tests.fuzz.scripted:interrupting", "--schedules", "100000", "--seed", "1"]
    command = [sys.executable, "-m", "fuzz", "run", *words, "--out", str(out), "--json", str(json)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.returncode == 1
    (path,) = (out / "repros").iterdir()
    assert load(path).finding.what == "step raised IndexError: row 2 is out of range"
    lines = ended.stdout.rstrip().splitlines()
    assert lines[-2] == "stopped; what was found is kept"
    assert lines[-1].startswith("next: slotfuzz run --target tests.fuzz.scripted:interrupting --schedules 100000 ")
    words_after = shlex.split(lines[-1])
    assert words_after[words_after.index("--seed") + 1] == "2"
    assert json.is_file()
