"""Fresh: stored failures replayed in a process that has run nothing before, the way the command line does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.apart import Apart
from targets.registry import TargetSpec

_NAP_S = 0.02


class Outcome(msgspec.Struct, frozen=True):
    """What a fresh process says of one repro; as much of it as we need."""

    repro: str
    outcome: str
    same_bits: bool = False
    undecided: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Manner:
    """How a target is played.

    Attributes:
        in_process: In the process that judges.
        python: Another interpreter that plays it; None for this one.
        hang_s: A target of the user's own hangs once it is silent for so long; None for our own patience.
    """

    spec: TargetSpec
    in_process: bool = False
    hang_s: float | None = None
    python: Path | None = None

    def words(self) -> list[str]:
        """The command-line words that say the same to `slotfuzz replay`."""
        words = ["--target", self.spec.target] if ":" in self.spec.target else []
        words += ["--in-process"] if self.in_process else []
        words += [] if self.python is None else ["--python", str(self.python)]
        return words + ([] if self.hang_s is None else ["--hang-seconds", f"{self.hang_s:.3f}"])


class Afresh:
    """Some repros being replayed in one fresh process. To be ended.

    Args:
        told: A file that does not exist yet, in which the process says how it came out.
    """

    def __init__(self, paths: Sequence[Path], manner: Manner, told: Path) -> None:
        self.paths = tuple(paths)
        self._told = told
        told.unlink(missing_ok=True)
        self.process = Apart("fuzz.apart", ["replay", *manner.words(), "--json", str(told), *map(str, paths)])

    def over(self) -> bool:
        """Whether it has come to its end."""
        return self.process.over()

    def wait(self) -> dict[Path, Outcome]:
        """The outcomes, once it has ended."""
        while not self.over():
            time.sleep(_NAP_S)
        return self.outcomes()

    def outcomes(self) -> dict[Path, Outcome]:
        """How it came out, for those of which it said so."""
        rows: list[Outcome] = []
        if self._told.is_file():
            rows = msgspec.json.decode(self._told.read_bytes(), type=list[Outcome])
        heard = {Path(row.repro): row for row in rows}
        return {path: heard[path] for path in self.paths if path in heard}

    def end(self) -> None:
        """Ends the process, and removes what it said."""
        self.process.end()
        self._told.unlink(missing_ok=True)
