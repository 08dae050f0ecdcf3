"""`fuzz.testing`: a test of one's own target in three lines, in profiles, and shared out by pytest-xdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.pytest_plugin import PROFILE, SEED
from fuzz.repro import load
from fuzz.testing import isolation_test, search_shard, seed_of_run
from targets.attention import honest, shared
from targets.protocol import BadInput
from tests.fuzz.scripted import honest as mute

ROOT = Path(__file__).parents[2]

test_no_answer_of_the_honest_twin_depends_on_a_neighbour = pytest.mark.slow(isolation_test(honest, schedules=16, shards=2))


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE, raising=False)
    monkeypatch.delenv(SEED, raising=False)


def test_the_module_that_keeps_its_cache_in_itself_fails_with_the_smallest_schedule(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"LEAK  request #1 depends on what #0 asked(.|\n)*submit #1  prompt \[2\]  new 1"
    ):
        search_shard(shared, {}, 3, 60, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_target_that_is_named_is_played_apart_and_what_fails_is_stored(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"slotfuzz replay --target tests.fuzz.dying:aborting"):
        search_shard("tests.fuzz.dying:aborting", {}, 1, 3, tmp_path)
    (path,) = (tmp_path / "repros").iterdir()
    assert load(path).finding.what == "step ended the process, which was killed by SIGABRT"


def test_a_model_that_can_t_convict_is_no_pass(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"undecided, which is no pass:\n.* one-token changes of a prompt change the answer"
    ):
        search_shard(mute, {}, 0, 2, tmp_path)


def test_ci_has_one_seed_and_nights_have_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [seed_of_run(), seed_of_run()] == [0, 0]
    monkeypatch.setenv(PROFILE, "nightly")
    assert seed_of_run() != seed_of_run()
    monkeypatch.setenv(SEED, "7")
    assert seed_of_run() == 7
    monkeypatch.setenv(SEED, "seven")
    with pytest.raises(BadInput, match="SLOTFUZZ_SEED must be a whole number, got seven"):
        seed_of_run()
    monkeypatch.setenv(PROFILE, "weekly")
    with pytest.raises(BadInput, match="SLOTFUZZ_PROFILE must be one of ci, nightly, got weekly"):
        seed_of_run()


def test_what_is_no_factory_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"factory must be a targets.protocol.Factory, or what returns one, got int"):
        search_shard(lambda: 3, {}, 0, 1, tmp_path)  # type: ignore[arg-type, return-value]


@pytest.mark.slow
def test_shards_are_shared_out_by_xdist_and_all_have_the_night_s_seed(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from fuzz.testing import isolation_test\n"
        "from targets.attention import shared as factory\n"
        "test_isolation = isolation_test(factory, schedules=40, shards=2)\n"
    )
    words = [
        "-p",
        "fuzz.pytest_plugin",
        "-p",
        "xdist",
        "-n",
        "2",
        "--slotfuzz-profile",
        "nightly",
        "-p",
        "no:cacheprovider",
    ]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-v", "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1, told.stdout + told.stderr
    header = re.search(r"slotfuzz: profile nightly, seed (\d+)", told.stdout)
    assert header is not None
    seeds = {int(each) for each in re.findall(r"^E +seed (\d+); ", told.stdout, re.MULTILINE)}
    assert seeds == {int(header[1]), int(header[1]) + 1}
    assert set(re.findall(r"\[(gw\d)\].* FAILED test_mine.py::test_isolation\[\d\]", told.stdout)) == {"gw0", "gw1"}
