"""Workers under the command line: deaths and hangs come out as findings, and whoever is stopped leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from fuzz.repro import load
from fuzz.worker import Running
from targets.protocol import Kind, submissions

ROOT = Path(__file__).parents[2]


def command(target: str, out: Path, *words: object) -> list[str]:
    """`slotfuzz run` on a target of `tests.fuzz.dying`."""
    named = ["--target", f"tests.fuzz.dying:{target}", "--seed", "1", "--out", str(out)]
    return [sys.executable, "-m", "fuzz", "run", *named, *map(str, words)]


def children(parent: int) -> list[int]:
    """The processes that a process has started, those that have ended aside."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_parent) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def vanish(processes: list[int]) -> bool:
    """Whether all are gone within ten seconds."""
    until = time.monotonic() + 10
    while any(Path(f"/proc/{each}").exists() for each in processes) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(Path(f"/proc/{each}").exists() for each in processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kind", "what", "requests"),
    [
        ("aborting", Kind.CRASHED, "step ended the process, which was killed by SIGABRT", 3),
        ("sleeping", Kind.STALLED, "submit never came back, and #0 #1 never ended", 2),
    ],
)
def test_a_target_that_dies_or_hangs_is_found_shrunk_and_fails_again_in_a_fresh_process(
    tmp_path: Path, target: str, kind: Kind, what: str, requests: int
) -> None:
    words = command(target, tmp_path / "out", "--schedules", 1, "--hang-seconds", 2)
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    (path,) = (tmp_path / "out" / "repros").iterdir()
    repro = load(path)
    assert (repro.finding.kind, repro.finding.what) == (kind, what)
    assert [len(request.prompt) for request in submissions(repro.schedule)] == [1] * requests
    assert len(repro.schedule.ops) == requests
    assert repro.minimal
    assert f"{path.name}\n" in ended.stdout
    assert not (tmp_path / "out" / "found").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_target_that_eats_memory_is_told_that_there_is_none_found_and_shrunk(tmp_path: Path) -> None:
    words = command("eating", tmp_path / "out", "--schedules", 1, "--memory-gib", 4)
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    (path,) = (tmp_path / "out" / "repros").iterdir()
    repro = load(path)
    assert repro.finding.kind is Kind.CRASHED
    assert repro.finding.what.startswith("step raised MemoryError")
    assert [len(request.prompt) for request in submissions(repro.schedule)] == [1, 1]
    assert repro.memory_gib == 4
    again = f"slotfuzz replay --target tests.fuzz.dying:eating --memory-gib 4 {path}\n"
    assert f"  {again}" in ended.stdout
    assert f"next: {again}" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_no_process_and_if_killed_the_schedule_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    out, spins = tmp_path / "out", tmp_path / "spins"
    monkeypatch.setenv("SPINS", str(spins))
    # The worker holds the GIL in C for ever: only the kernel can end it.
    words = command("spinning", out, "--schedules", 1, "--hang-seconds", 300)
    run = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not spins.exists():
        assert run.poll() is None, "it ended before it hung"
        time.sleep(0.01)
    workers = children(run.pid)
    assert workers
    run.send_signal(sent)
    said, _ = run.communicate()
    assert vanish(workers)
    if sent is signal.SIGKILL:
        running = out / "found" / f"run-{run.pid}" / "running.json"
        culprit = msgspec.json.decode(running.read_bytes(), type=Running)
        assert culprit.target.target == "tests.fuzz.dying:spinning"
        assert len(submissions(culprit.schedule)) > 1
    else:
        assert "stopped before any schedule was judged" in said
        assert "--hang-seconds 300" in said
        assert list(tmp_path.iterdir()) == [spins]
