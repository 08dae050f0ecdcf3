"""A disk that is really full: a file system of a megabyte, where one may be mounted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.repro import Repro, load

ALL = 24
"""So many ways to fail are found in the schedules below, as a run with room shows."""
WORDS = ("--target", "tests.fuzz.scripted:brittle", "--in-process", "--seed", "1", "--workers", "1", "--resume")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of a megabyte, with a file `filler` that leaves little of it."""
    small = tmp_path / "disk"
    small.mkdir()
    mount = shutil.which("mount")
    asked = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if mount is None or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield small
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill(disk: Path, left: int) -> None:
    room = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(max(0, room - left)))


def run(disk: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["run", "--out", str(disk / "out"), *WORDS, *words], prog_name="slotfuzz")


@pytest.mark.slow
@pytest.mark.long
def test_what_was_found_on_a_disk_that_fills_up_is_on_it_or_printed_and_the_campaign_goes_on_with_room(disk: Path) -> None:
    fill(disk, left=40_000)
    done = run(disk, "--schedules", "40")
    assert done.exit_code == 3, done.output
    assert "\nundecided: there was no room for all that was found: it is printed\n" in done.stdout
    assert f"\nnot written: {disk / 'out' / 'report.html'}: No space left on device\n" in done.stdout
    printed = {msgspec.json.decode(line, type=Repro).signature for line in done.stdout.splitlines() if line.startswith("{")}
    kept = {load(path).signature for path in disk.rglob("*.json") if path.parent.name.startswith(("repros", "shard-"))}
    assert printed
    assert kept
    assert len(printed | kept) == ALL
    (disk / "filler").unlink()
    again = run(disk, "--schedules", "1")
    assert again.exit_code == 1, again.output
    assert kept <= {load(path).signature for path in (disk / "out" / "repros").glob("*.json")}
    assert not (disk / "out" / "found").exists()


def test_a_campaign_is_not_begun_on_a_full_disk(disk: Path) -> None:
    fill(disk, left=0)
    refused = run(disk, "--schedules", "1")
    assert refused.exit_code == 2
    assert refused.stderr == f"--out must be a folder with room for a campaign, got {disk / 'out'}\n"
