"""The picture: edits by length, mass by length, and KL by layer and head. Rendering only; matplotlib is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from fuzz.passphrase.prefix import Drift, Look
from fuzz.passphrase.texts import KINDS

_STYLES = {"neutral": ("#56B4E9", "o", "-"), "instruction": ("#D55E00", "s", "--")}


def draw(drifts: Sequence[Drift], looks: Sequence[Look], model: str, path: Path) -> None:
    """Three panels: how far answers move, how much attention the text draws, and where the attention departs."""
    from matplotlib.figure import Figure  # without pyplot, which would look for a display

    figure = Figure(figsize=(13, 4.2), layout="constrained", dpi=150)
    answers, masses, heads = figure.subplots(1, 3)
    lengths = list(dict.fromkeys(drift.length for drift in drifts))
    for kind in KINDS:
        colour, marker, line = _STYLES[kind]
        style = {"color": colour, "marker": marker, "linestyle": line, "label": f"{kind} text"}
        means = [[each.mean for each in drifts if (each.kind, each.length) == (kind, length)] for length in lengths]
        answers.plot(lengths, [mean(some) for some in means], **style)
        answers.fill_between(lengths, [min(some) for some in means], [max(some) for some in means], color=colour, alpha=0.2)
        mine = [[look for look in looks if (look.kind, look.length) == (kind, length)] for length in lengths]
        masses.plot(lengths, [100 * mean(mean(map(mean, look.mass)) for look in some) for some in mine], **style)
    for panel, name in ((answers, "edit distance of the answer (tokens)"), (masses, "attention that goes to the text (%)")):
        panel.set_xscale("log", base=2)
        panel.set_xticks(lengths, map(str, lengths), fontsize=7)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("tokens before the task")
        panel.set_ylabel(name)
        panel.grid(visible=True, linewidth=0.4, color="#cccccc")
        panel.legend(frameon=False)
    longest = [look for look in looks if look.length == max(lengths)]
    shape = [(layer, range(len(row))) for layer, row in enumerate(longest[0].kl)]
    table = [[mean(look.kl[layer][head] for look in longest) for head in row] for layer, row in shape]
    image = heads.imshow(table, aspect="auto", cmap="cividis")
    heads.set_xticks(range(len(table[0])))
    heads.set_yticks(range(len(table)))
    heads.tick_params(labelsize=7)
    heads.set_xlabel("head")
    heads.set_ylabel("layer")
    heads.set_title(f"KL over the task's own keys, {max(lengths)} tokens (nats)", fontsize=10)
    figure.colorbar(image, ax=heads)
    figure.suptitle(f"A text before a task, and what it does. Model {model}", fontsize=12)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
