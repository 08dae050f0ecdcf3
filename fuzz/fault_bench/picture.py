"""Picture: survival curves. How large a share of the trials of each way had found nothing after so many seconds.

All trials of a way are cut off after the same time, at which its curve ends: up to there no estimate is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuzz.fault_bench.attempts import Trial
from fuzz.fault_bench.ways import OURS, WAYS

# Okabe and Ito's colours, which colour-blind readers tell apart; dashes say the same without colour.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_DASHES = ("-", "--", "-.", ":")
EARLIEST_S = 0.01


def survival(trials: Sequence[Trial], end_s: float) -> tuple[list[float], list[float]]:
    """Seconds at which something was found, and the share of the trials that had found nothing from then on.

    Starts with all of them, and ends with whoever is left at `end_s`.
    """
    times = sorted(trial.found_s for trial in trials if trial.found_s is not None and trial.found_s <= end_s)
    left = [1 - (index + 1) / len(trials) for index in range(len(times))]
    return [EARLIEST_S, *(max(time, EARLIEST_S) for time in times), end_s], [1.0, *left, left[-1] if left else 1.0]


def draw(trials: Sequence[Trial], path: Path) -> None:
    """One curve a way, over all faults that it was tried on."""
    from matplotlib.figure import Figure  # an extra; without pyplot, which would look for a display

    figure = Figure(figsize=(8.0, 4.6), layout="constrained", dpi=150)
    axes = figure.subplots()
    present = [way for way in WAYS if any(trial.task.way == way for trial in trials)]
    for index, way in enumerate(present):
        mine = [trial for trial in trials if trial.task.way == way]
        end_s = max(trial.task.seconds or trial.judged_s for trial in mine)
        times, left = survival(mine, end_s)
        axes.step(
            times,
            [100 * share for share in left],
            where="post",
            label=f"{way} ({len(mine)} trials)",
            color=_COLOURS[index],
            linestyle=_DASHES[index % len(_DASHES)],
            linewidth=2.5 if way == OURS else 1.5,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 102)
    axes.grid(visible=True, linewidth=0.4, color="#cccccc")
    axes.set_xlabel("seconds from the first schedule on")
    axes.set_ylabel("trials that have found nothing yet (%)")
    axes.set_title("How long planted faults survive", fontsize=12)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
