"""How the experiment looks as text. Rendering only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import TypeVar

from rich.table import Table

from fuzz.passphrase.claims import Claim
from fuzz.passphrase.prefix import Drift, Look
from fuzz.passphrase.serving import Played
from fuzz.passphrase.texts import KINDS

Text = TypeVar("Text", Drift, Look)

_HOLDS = {True: "holds", False: "does not hold", None: "can't be told"}


def of_played(played: Sequence[Played]) -> Table:
    """Repeat and concurrent, a line for each way."""
    table = Table("way", "target", "requests", "tokens", "drifted", "largest", "found", box=None)
    for each in played:
        found = (
            ", ".join(dict.fromkeys(_found(finding.kind, finding.sources) for finding in each.findings))
            or each.told.partition(":")[0]
        )
        sizes = (each.requests, each.tokens, each.drifted)
        table.add_row(each.way, each.target, *map(str, sizes), f"{each.largest:.3g}", found)
    return table


def of_drifts(drifts: Sequence[Drift], trusted: Sequence[Drift], trust: int) -> Table:
    """Mean edit distance by length and kind, and from the text that moves least to the one that moves most."""

    def cell(mine: Sequence[Drift]) -> str:
        means = [drift.mean for drift in mine]
        return f"{mean(means):.1f} ({min(means):.1f} to {max(means):.1f})"

    return _by_length("edits", cell, drifts, trusted, trust)


def of_looks(looks: Sequence[Look], trusted: Sequence[Look], trust: int) -> Table:
    """KL over the task's own keys and mass on the text, over all layers and heads, by length and kind."""

    def cell(mine: Sequence[Look]) -> str:
        kl = mean(mean(row) for look in mine for row in look.kl)
        mass = mean(mean(row) for look in mine for row in look.mass)
        return f"{kl:.3f} nats, {mass:.1%}"

    return _by_length("KL, mass", cell, looks, trusted, trust)


def _by_length(
    what: str, cell: Callable[[Sequence[Text]], str], texts: Sequence[Text], trusted: Sequence[Text], trust: int
) -> Table:
    """A line for each length, a column for each kind, and once more for what was trusted less."""
    columns = [f"{kind}: {what}" for kind in KINDS]
    columns += [f"{kind}, {trust} nats less" for kind in KINDS] if trusted else []
    table = Table("tokens before the task", *columns, box=None)
    for length in dict.fromkeys(text.length for text in texts):
        cells = [
            cell([text for text in some if (text.kind, text.length) == (kind, length)])
            for some in (texts, trusted)
            if some
            for kind in KINDS
        ]
        table.add_row(str(length), *cells)
    return table


def of_claims(claims: Sequence[Claim]) -> Table:
    """A line for each claim."""
    table = Table("claim", "measured", "", box=None)
    for claim in claims:
        table.add_row(claim.says, claim.measured, _HOLDS[claim.holds])
    return table


def _found(kind: str, sources: tuple[int, ...]) -> str:
    return f"{kind} from {' '.join(f'#{source}' for source in sources)}" if sources else kind
