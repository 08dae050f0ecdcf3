"""Soak: a server of its own under load that comes and goes for a long time, judged beside it, whose memory is watched."""

from __future__ import annotations

from pathlib import Path

from stress.benches.runs import Run, play
from stress.benches.served import serving
from stress.judging.verdicts import format_verdicts
from stress.load.telling import tell

LAG_S = 5
"""The server's gauges are read every so many seconds."""


def soak(seconds: float, users: int, period_s: float, seed: int, out: Path, words: tuple[str, ...]) -> Run:
    """Loads a server, with more words for `slotfuzz serve`: half of each period everybody asks, half of it nobody does."""
    with serving(*words) as server:
        shape = ("--shape", "on-off", "--period", f"{period_s:g}")
        watch = ("--watch-pid", str(server.process.pid), "--watch-seconds", str(LAG_S))
        load = ("-u", str(users), "-r", str(users), "-t", f"{seconds:g}s", "--seed", str(seed))
        return play(f"http://127.0.0.1:{server.port}", out, "beside", *load, *shape, *watch)


def is_clean(run: Run) -> bool:
    """Whether everything was judged, nothing was wrong or lost, and the gauges were back at zero whenever it was idle."""
    assert run.verdicts is not None, "it was judged"
    gauges = run.ended.gauges
    return run.code == 0 and run.verdicts.verdict == "PASS" and gauges is not None and gauges.idle_looks > 0


def format_soak(run: Run) -> str:
    """All figures, and the verdicts."""
    assert run.verdicts is not None, "it was judged"
    return f"{tell(run.ended.figures, run.ended.gauges, run.ended.unsent)}\n{format_verdicts(run.verdicts)}"
