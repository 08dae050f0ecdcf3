"""Faults under load: servers with a bug in them, loaded by locust and judged, and repros played in fresh processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stress.benches.runs import first_bad_s, play
from stress.benches.served import serving
from targets.protocol import BadInput

TEN = (
    "mask-to-longest",
    "position-of-longest",
    "result-by-row",
    "cancel-frees-twice",
    "token-lost-on-finish",
    "late-token",
    "noise-by-step",
    "state-left-behind",
    "heads-share",
    "unaligned-lengths",
)
"""Masks, positions, rows, slots, streams, noise, recurrent states, heads, lengths: one bug of each sort."""
SHRUNK_SHARE = 0.8
FAILED = 1
SILENCE_S = "10"
"""What a planted bug leaves hanging is given up after so long."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one fault.

    Attributes:
        first_bad_s: After so many seconds of load a response had come that is wrong, or was lost; None where none is.
        repros: The kind and the number of requests of each that was stored.
        failing: As many of them fail when they are replayed in a fresh process.
        seconds: Of it all, judging and shrinking included.
    """

    fault: str
    responses: int
    judged: int
    wrong: int
    lost: int
    first_bad_s: float | None
    repros: tuple[tuple[str, int], ...]
    failing: int
    seconds: float

    @property
    def flagged(self) -> bool:
        """Whether the judge says that something is wrong."""
        return self.first_bad_s is not None


class Table(msgspec.Struct, frozen=True):
    """All faults."""

    users: int
    seconds: float
    seed: int
    rows: tuple[Row, ...]

    @property
    def flagged(self) -> int:
        """So many faults were."""
        return sum(row.flagged for row in self.rows)

    @property
    def shrunk(self) -> int:
        """So many faults have a repro that fails in a fresh process."""
        return sum(row.failing > 0 for row in self.rows)

    @property
    def enough(self) -> bool:
        """All flagged, and four fifths with a repro."""
        return self.flagged == len(self.rows) and self.shrunk >= SHRUNK_SHARE * len(self.rows)


def load_faults(
    faults: Sequence[str], users: int, seconds: float, seed: int, out: Path, tell: Callable[[str], None]
) -> Table:
    """Plants one fault after another; `tell` hears a line each.

    Raises:
        BadInput: where a fault's folder is there already.
    """
    rows = []
    for fault in faults:
        if (out / fault).exists():
            raise BadInput("--out", "a folder without an earlier bench in it", out / fault)
        rows.append(_load(fault, users, seconds, seed, out / fault))
        tell(format_row(rows[-1]))
    return Table(users, seconds, seed, tuple(rows))


def _load(fault: str, users: int, seconds: float, seed: int, folder: Path) -> Row:
    began_s = time.monotonic()
    folder.mkdir(parents=True)
    patience = ("--silence-seconds", SILENCE_S, "--grace-seconds", SILENCE_S)
    options = ("-u", str(users), "-r", str(users), "-t", f"{seconds:g}s", "--seed", str(seed), *patience)
    with serving("--fault", fault, "--record", str(folder / "account.jsonl")) as server:
        run = play(f"http://127.0.0.1:{server.port}", folder, "after", *options)
    assert run.verdicts is not None, "it was judged"
    repros = run.verdicts.repros
    return Row(
        fault=fault,
        responses=run.verdicts.responses,
        judged=run.verdicts.judged,
        wrong=run.verdicts.wrong,
        lost=run.verdicts.lost,
        first_bad_s=first_bad_s(folder),
        repros=tuple((repro.kind, repro.requests) for repro in repros),
        failing=sum(_fails(folder / repro.path) for repro in repros),
        seconds=round(time.monotonic() - began_s, 1),
    )


def _fails(repro: Path) -> bool:
    """Whether a repro fails in a fresh process."""
    command = [sys.executable, "-m", "fuzz", "replay", str(repro)]
    return subprocess.run(command, capture_output=True, check=False).returncode == FAILED


def format_row(row: Row) -> str:
    """A line."""
    when = "NOT FLAGGED" if row.first_bad_s is None else f"flagged by what came after {row.first_bad_s:.1f} s"
    repros = ", ".join(f"{kind} of {requests} requests" for kind, requests in row.repros) or "NO REPRO"
    return (
        f"{row.fault:<24} {row.judged} of {row.responses} judged, {row.wrong} wrong, {row.lost} lost; {when}; {repros}; "
        f"{row.failing} of {len(row.repros)} fail in a fresh process; {row.seconds:.0f} s"
    )


def format_table(table: Table) -> str:
    """The sum."""
    count = len(table.rows)
    return (
        f"{table.users} users, {table.seconds:g} s each, seed {table.seed}: {table.flagged} of {count} flagged, "
        f"{table.shrunk} of {count} with a repro that fails in a fresh process"
    )
