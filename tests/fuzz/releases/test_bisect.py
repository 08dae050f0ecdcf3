"""`slotfuzz bisect` on an engine of a few lines, whose releases are wheels in a folder: nothing is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.releases.environments import Environments, NotInstalledError
from fuzz.repro import Repro, load, save
from targets.protocol import CheckName, Kind, Request, Schedule, Submit
from targets.registry import TargetSpec
from tests.fuzz.releases.versioned import PACKAGE, factory, wheel

ROOT = Path(__file__).parents[3]
TARGET = "tests.fuzz.releases.versioned:factory"
FINDINGS = ROOT / "tests" / "targets" / "findings"


def bisect(*words: object) -> Result:
    return CliRunner().invoke(main, ["bisect", *map(str, words)], prog_name="slotfuzz")


@pytest.fixture
def versioned(repro: Repro, tmp_path: Path) -> Path:
    """A repro of the engine's failure: it raises when a second request comes."""
    ops = tuple(Submit(Request(prompt=(3,), max_new_tokens=2)) for _ in range(2))
    what = "submit raised IndexError: row 1 is out of range"
    finding = msgspec.structs.replace(repro.finding, kind=Kind.CRASHED, check=CheckName.SURVIVAL, what=what, submission=1)
    made = msgspec.structs.replace(
        repro, target=TargetSpec(TARGET), identity=factory().identity, schedule=Schedule(ops=ops), finding=finding
    )
    return save(made, tmp_path)


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds releases, and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.long
def test_each_version_is_tried_in_an_environment_of_its_own(versioned: Path, releases: Path, tmp_path: Path) -> None:
    for version, behaves in {"1.9": "well", "1.10": "fails", "1.11": "lacks a call", "1.12": "loses requests"}.items():
        wheel(releases, version, behaves)
    table = tmp_path / "table.json"
    asked = ["--versions", "1.12,1.9,1.11,2.0,1.10", "--package", PACKAGE, "--target", TARGET]
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz", "bisect", versioned, *asked, "--json", table, "--cache", tmp_path / "cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stderr, ended.returncode) == ("", 1)
    told: dict[str, Any] = msgspec.json.decode(table.read_bytes())
    rows = [(row["version"], row["standing"], row["why"]) for row in told["versions"]]
    unfit = "one request alone, at its defaults, is not answered: submit raised AttributeError: the engine has no submit"
    assert rows == [
        ("1.9", "FIXED", ""),
        ("1.10", "REPRODUCED", ""),
        ("1.11", "could not run", unfit),
        ("1.12", "UNDECIDED", rows[3][2]),
        ("2.0", "could not run", f"not installed: No matching distribution found for {PACKAGE}==2.0"),
    ]
    assert rows[3][2].startswith("STALLED in its place: ")
    assert (told["first_bad"], told["last_good"], told["between"], told["fixed_in"]) == ("1.10", "1.9", [], None)
    assert ended.stdout.endswith("first bad version: 1.10; last good version before it: 1.9\n")
    kept = sorted(path.name.split("-")[1] for path in (tmp_path / "cache").iterdir())
    assert kept == ["1.10", "1.11", "1.12", "1.9"]


@pytest.mark.slow
def test_an_environment_is_built_once_and_what_could_not_be_built_leaves_nothing(releases: Path, tmp_path: Path) -> None:
    path = wheel(releases, "1.0", "well")
    environments = Environments(tmp_path / "cache", PACKAGE, seconds=120)
    python = environments.python("1.0")
    path.unlink()
    assert environments.python("1.0") == python
    says = subprocess.run(
        [python, "-c", f"import {PACKAGE}, torch; print({PACKAGE}.BEHAVES)"], capture_output=True, text=True
    )
    assert (says.stdout, says.stderr) == ("well\n", "")
    with pytest.raises(NotInstalledError) as caught:
        environments.python("1.1")
    assert str(caught.value) == f"No matching distribution found for {PACKAGE}==1.1"
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [python.parents[1].name]


def test_an_installation_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(NotInstalledError) as caught:
        Environments(tmp_path / "cache", PACKAGE, seconds=0.01).python("1.0")
    assert str(caught.value) == "it was not installed in time"
    assert time.monotonic() - began < 5
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--versions", ","], "--versions must be 1..64 versions with commas between, got ,"),
        (["--versions", "1.0,-e ."], "--versions must be released versions with commas between, as 5.23.0,5.24.0, got -e ."),
        (
            ["--versions", "1.0", "--package", "x"],
            f"--target must be {TARGET} for this repro, got none ({{path}})",
        ),
        (
            ["--versions", "1.0"],
            "--package must be given for a target that is no real engine with released versions, got nothing "
            f"({TARGET}, {{path}})",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_installed(
    versioned: Path, words: list[str], sentence: str
) -> None:
    refused = bisect(versioned, *words)
    assert refused.exit_code == 2
    assert refused.output == sentence.format(path=versioned) + "\n"


def test_a_cache_that_is_a_file_is_refused_before_anything_is_said(versioned: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    refused = bisect(versioned, "--versions", "1.0", "--package", "x", "--target", TARGET, "--cache", plain)
    assert (refused.exit_code, refused.output) == (2, f"--cache must be a folder that can be written, got {plain}\n")


@pytest.mark.slow
@pytest.mark.long
def test_a_real_engine_is_tried_in_a_released_version(tmp_path: Path) -> None:
    path = FINDINGS / "ctranslate2-one-token-neighbour.json"
    version = load(path).versions["ctranslate2"]
    told = bisect(path, "--versions", version, "--cache", os.environ.get("SLOTFUZZ_ENVIRONMENTS", tmp_path / "cache"))
    if "not installed: " in told.output:
        pytest.skip(told.output.rpartition("not installed: ")[2].strip())
    assert told.exit_code == 1
    assert f"first bad version: {version}; last good version before it: none" in told.output
