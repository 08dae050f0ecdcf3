"""How dose and response look: a line of text each, and a picture. Rendering only: nothing is measured here.

matplotlib is asked for when a picture is, and not before: it is an extra.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fuzz.dose import WAYS, Naming, Response
from targets.faults.dose import ULP
from targets.protocol import BadInput

SUFFIXES = (".png", ".svg")
# Okabe and Ito's colours, which colour-blind readers tell apart; markers and dashes say the same without colour. Two of the
# lines are broad with hollow markers and drawn first, because they often run under the two thin ones.
_STYLES = {
    "tokens": {"color": "#E69F00", "marker": "o", "linestyle": "-", "linewidth": 4, "label": "a token is not the one alone"},
    "swap": {"color": "#56B4E9", "marker": "D", "linestyle": "-", "linewidth": 4, "label": "its bits change under the swap"},
    "regret": {
        "color": "#D55E00",
        "marker": "s",
        "linestyle": "--",
        "linewidth": 1.5,
        "label": "its regret is beyond rounding",
    },
    "logits": {
        "color": "#000000",
        "marker": "^",
        "linestyle": "-.",
        "linewidth": 1.5,
        "label": "its logits are beyond rounding",
    },
}
_LABELS = {
    False: "leaked share of the neighbour's V (1 = all of it)",
    True: "one cell's way to the neighbour's (1 = all of it)",
}
_ULP_AT = 1e-8
"""Where a unit in the last place is drawn."""
_HOLLOW = {"markersize": 9, "markerfacecolor": "white", "markeredgewidth": 2}
_FILLED = {"markersize": 4}

HEADING = f"{'dtype':<9} {'share':>6} {'exposed':>8} {'lost':>5}  " + "  ".join(f"{way:>12}" for way in WAYS) + "  undecided"


def check_picture(path: Path) -> None:
    """Raises BadInput where a picture could not be drawn into this file."""
    if path.suffix not in SUFFIXES:
        raise BadInput("--plot", f"a file that ends in {' or '.join(SUFFIXES)}", path)
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput("--plot", "left out without matplotlib (pip install 'slotfuzz[plot]')", path)


def format_response(response: Response) -> str:
    """One line under `HEADING`: how many of the exposed each way of looking noticed, and their share."""
    share = {0.0: "clean", ULP: "1 ulp"}.get(response.share, f"{response.share:g}")
    noticed = [response.seen[way] for way in WAYS]
    cells = [f"{count:>5} {_percent(count, response.exposed):>6}" for count in noticed]
    line = f"{response.dtype:<9} {share:>6} {response.exposed:>8} {response.lost:>5}  {'  '.join(cells)}"
    return f"{line}  {response.undecided:>9}"


def format_naming(naming: Naming) -> str:
    """Whether sources were named right, in a sentence."""
    return f"sources named right: {naming.right} of {naming.leaks} leaks, from {naming.sources} sources in all"


def _percent(count: int, of: int) -> str:
    """Rounded down: 99.9% must not read as all of them."""
    return f"{1000 * count // of / 10:g}%" if of else "-"


def draw(responses: Sequence[Response], model: str, path: Path, one_cell: bool = False) -> None:
    """The share of exposed requests that each way noticed, against the leaked share, a panel a dtype."""
    from matplotlib.figure import Figure  # an extra; without pyplot, which would look for a display

    dtypes = list(dict.fromkeys(response.dtype for response in responses))
    columns = min(2, len(dtypes))
    rows = -(-len(dtypes) // columns)
    figure = Figure(figsize=(4.6 * columns + 0.4, 3.3 * rows + 1.0), layout="constrained", dpi=150)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for panel, dtype in zip(panels, dtypes, strict=False):
        mine = [response for response in responses if response.dtype == dtype and response.share and response.exposed]
        shares = [max(response.share, _ULP_AT) for response in mine]
        for way, style in _STYLES.items():
            noticed = [100 * response.seen[way] / response.exposed for response in mine]
            panel.plot(shares, noticed, **style, **(_HOLLOW if way in ("tokens", "swap") else _FILLED))
        exposed = [response.exposed for response in mine]
        panel.set_title(f"{dtype}: {min(exposed, default=0)} to {max(exposed, default=0)} exposed requests", fontsize=10)
        panel.set_xscale("log")
        if _ULP_AT in shares:
            panel.set_xticks([_ULP_AT, 1e-6, 1e-4, 1e-2, 1], ["1 ulp", "1e-6", "1e-4", "1e-2", "1"])
        panel.set_ylim(-5, 107)
        panel.grid(visible=True, linewidth=0.4, color="#cccccc")
        panel.set_xlabel(_LABELS[one_cell], fontsize=9)
        panel.set_ylabel("exposed requests noticed (%)", fontsize=9)
        panel.tick_params(labelbottom=True, labelleft=True)
    for panel in panels[len(dtypes) :]:
        panel.remove()
    what = "one cell that is nearer to a neighbour's" if one_cell else "a share of a neighbour's V"
    figure.suptitle(f"Who still sees {what}? Model {model}", fontsize=12)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
