"""`ci/nightly`: the same script locally and in CI; green, red or undecided, and nothing in between."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from fuzz.campaign.folder import FAILED, FIXED, Bug, Campaign, Folder, Session, write_json
from fuzz.campaign.tallies import Shard
from fuzz.pages.campaign import read_state
from fuzz.pages.summaries import junit, markdown
from targets.protocol import Kind
from targets.registry import TargetSpec

ROOT = Path(__file__).parents[1]


def folder_of(path: Path, status: str, error: str = "", schedules: int = 5) -> Folder:
    """A campaign of one session with one bug."""
    bug = Bug(
        signature="LEAK swap: a|b <x>",
        id="0123456789ab",
        kind=Kind.LEAK,
        what="request #1 \x07depends | on",
        status=status,
        first_seen_s=50.0,
        last_seen_s=90.0,
        error=error,
    )
    session = Session(workers=2, began_s=40.0, ended_s=99.0, seconds=30.0, shards=[0])
    folder = Folder(path)
    folder.save(Campaign(target=TargetSpec(), settings={}, seed=1, next_shard=1, sessions=[session], bugs=[bug]))
    write_json(folder.tally(0), Shard(number=0, schedules=schedules))
    return folder


@pytest.mark.parametrize(
    ("status", "schedules", "counts", "colour"),
    [
        (FAILED, 5, ("2", "1", "0"), "red"),
        (FIXED, 5, ("2", "0", "0"), "green"),
        ("ERROR", 5, ("2", "0", "1"), "undecided"),
        (FIXED, 0, ("2", "0", "1"), "undecided"),
    ],
)
def test_junit_and_markdown_tell_red_from_green_from_undecided(
    tmp_path: Path, status: str, schedules: int, counts: tuple[str, ...], colour: str
) -> None:
    state = read_state(folder_of(tmp_path, status, "it ends the process" if status == "ERROR" else "", schedules))
    suite = ET.fromstring(junit(state))
    assert tuple(suite.get(name) for name in ("tests", "failures", "errors")) == counts
    assert [case.get("name") for case in suite] == ["LEAK swap: a|b <x>", "search"]
    text = markdown(state)
    assert text.startswith(f"## slotfuzz: {colour}\n")
    assert r"LEAK swap: a\|b \<x\>" in text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("target", "code", "colour"), [("crowded", 1, "red"), ("honest", 3, "undecided")])
def test_a_night_ends_as_the_run_does_and_leaves_what_ci_shows(
    tmp_path: Path, target: str, code: int, colour: str, slotfuzz: Path
) -> None:
    out, summary = tmp_path / "out", tmp_path / "step.md"
    words = [str(out), "3", "--target", f"tests.fuzz.scripted:{target}", "--in-process", "--seed", "1"]
    environment = {**os.environ, "SLOTFUZZ": str(slotfuzz), "WORKERS": "1", "GITHUB_STEP_SUMMARY": str(summary)}
    told = subprocess.run(
        [str(ROOT / "ci" / "nightly"), *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == code, told.stdout + told.stderr
    assert told.stdout.rstrip().endswith(f"nightly: {colour}")
    assert summary.read_text().startswith(f"## slotfuzz: {colour}\n")
    assert {"report.html", "junit.xml", "summary.md", "run.json", "campaign.json"} <= {path.name for path in out.iterdir()}


@pytest.fixture
def slotfuzz(tmp_path: Path) -> Path:
    """The command, as a program of this Python."""
    import sys

    path = tmp_path / "slotfuzz"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m fuzz "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["nightly-cpu.yml", "nightly-gpu.yml"])
def test_the_workflows_run_the_same_script_keep_what_was_found_and_hide_no_failure(name: str) -> None:
    workflow = yaml.safe_load((ROOT / "ci" / name).read_text())
    (job,) = workflow["jobs"].values()
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert [run for run in runs if run.startswith("ci/nightly slotfuzz-nightly ")]
    kept = {step["uses"].split("@")[0] for step in job["steps"] if step.get("with", {}).get("path") == "slotfuzz-nightly"}
    assert kept == {"actions/cache/restore", "actions/cache/save", "actions/upload-artifact"}
    assert all(
        step.get("if") == "always()"
        for step in job["steps"]
        if "save" in step.get("uses", "") or "upload" in step.get("uses", "")
    )
    assert not any("continue-on-error" in step for step in job["steps"])
    assert ("gpu" in job["runs-on"]) is ("gpu" in name)
    assert any("--device cuda" in run for run in runs) is ("gpu" in name)
