"""Kills a campaign at random moments, its supervisor or a worker, and looks whether anything is lost.

python -m tests.fuzz.kills --kills 50 --seed 1 --out FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fuzz.repro import load

ROOT = Path(__file__).parents[2]
FOUND, CONFIRMED = "found/shard-*/*.json", "repros/*.json"
NEWS_S = 120.0
"""In which there should be something new: there are some hundred failures to be found."""
TARGET = "tests.fuzz.scripted:brittle"


@dataclass
class Survey:
    """What the folder held after each kill.

    Attributes:
        seen: Signatures that ever lay in a file.
        lost: Those that lay nowhere after a later kill.
        broken: Files that were not whole.
        fresh: Kills before which something was found that had not been seen at the one before.
    """

    seen: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    supervisors: int = 0
    workers: int = 0
    fresh: int = 0

    def __str__(self) -> str:
        """So far."""
        return (
            f"killed: {self.supervisors} supervisors, {self.workers} workers; after something new: {self.fresh}; "
            f"signatures seen {len(self.seen)}, lost {len(self.lost)}, files not whole {len(self.broken)}"
        )

    def look(self, out: Path) -> None:
        """Reads every file; twice where something is missing, as it may have been moved meanwhile."""
        here = self.read(out)
        if self.seen - here:
            here |= self.read(out)
        self.lost |= self.seen - here
        self.fresh += not here <= self.seen
        self.seen |= here
        print(self, flush=True)

    def read(self, out: Path) -> set[str]:
        """The signatures that lie in files."""
        here: set[str] = set()
        for path in sorted(out.rglob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                try:
                    msgspec.json.decode(path.read_bytes())
                except msgspec.DecodeError:
                    self.broken.append(str(path))
                    continue
                if path.parent.name == "repros" or path.parent.name.startswith("shard-"):
                    here.add(load(path).signature)
        return here


def await_news(out: Path, pattern: str, run: subprocess.Popen[bytes]) -> None:
    """Waits until a repro lies where none does now, or the campaign has ended, or long enough."""
    before, until = set(out.glob(pattern)), time.monotonic() + NEWS_S
    while run.poll() is None and time.monotonic() < until and before.issuperset(out.glob(pattern)):
        time.sleep(0.02)


def command(out: Path, *words: str) -> list[str]:
    """`slotfuzz run` as a campaign of two workers."""
    return [
        *(sys.executable, "-m", "fuzz", "run", "--target", TARGET, "--in-process", "--workers", "2", "--resume"),
        *("--seed", "1", "--out", str(out), *words),
    ]


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, its_parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(its_parent) == parent and state != "Z":
                found.append(int(stat.parent.name))
    return found


def killed(out: Path, kills: int, seed: int, seconds: float) -> Survey:
    """Runs sessions one after another, and kills somebody in each at a random moment within these seconds.

    They begin when something new was found, or, one time in five, when something was confirmed; for one kill in five they
    begin at once: that may come while a session begins as well.
    """
    dice, survey = random.Random(seed), Survey()
    while survey.supervisors + survey.workers < kills:
        run = subprocess.Popen(
            command(out, "--schedules", "100000"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while run.poll() is None and survey.supervisors + survey.workers < kills:
                when = dice.choice((*[FOUND] * 3, CONFIRMED, None))
                if when is not None:
                    await_news(out, when, run)
                time.sleep(dice.uniform(0, seconds))
                crew = children(run.pid)
                if crew and dice.random() < 0.75:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(dice.choice(crew), signal.SIGKILL)
                    survey.workers += 1
                    survey.look(out)
                else:
                    break
            assert run.returncode != 2, "the campaign is refused: another one may run in its folder"
        finally:
            orphans = children(run.pid)
            run.kill()
            run.wait()
        survey.supervisors += 1
        while any(Path(f"/proc/{each}").exists() for each in orphans):  # the kernel ends them with their parent
            time.sleep(0.01)
        survey.look(out)
    return survey


def main() -> None:
    """Kills, then finishes, and says what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    survey = killed(asked.out, asked.kills, asked.seed, asked.seconds)
    last = subprocess.run(command(asked.out, "--schedules", "50"), cwd=ROOT, check=False)
    survey.look(asked.out)
    left = [str(path) for path in asked.out.rglob("*") if path.suffix == ".tmp" or path.name.endswith(".running.json")]
    print(f"--resume exits with {last.returncode}; lost {len(survey.lost)}, left behind {left}")


if __name__ == "__main__":
    main()
