"""Tables: how measurements look in a terminal. Rendering only: nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterable

from fuzz.decoder_bench.claims import Claim
from fuzz.decoder_bench.measure import Cell, Ratio, Table, quartiles


def format_table(table: Table) -> str:
    """A title, a line a row with the columns aligned, a line a comparison."""
    lines = [f"{table.part}: {table.title} ({table.model})"]
    if table.rows:
        lines += ["  " + line for line in _aligned(table.rows)]
    lines += ["  " + _format_ratio(ratio) for ratio in table.ratios]
    for what, figure, most in table.limits:
        lines.append(f"  {what}: {figure:.1%}, at most {most:.0%} asked: {'kept' if figure <= most else 'MISSED'}")
    return "\n".join([*lines, *(f"  {note}" for note in table.notes)])


def format_claims(model: str, claims: Iterable[Claim]) -> str:
    """A line a claim: whether it holds, what is claimed, what was measured."""
    words = {True: "holds", False: "does not hold", None: "not measured"}
    lines = [f"claims ({model})"]
    lines += [f"  {words[claim.holds]:<13}  {claim.claim}: {claim.measured or '-'}" for claim in claims]
    return "\n".join(lines)


def _aligned(rows: Iterable[dict[str, Cell]]) -> list[str]:
    """The rows under their heading, words to the left and numbers to the right."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    shown = [[_format_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in [columns, *shown]) for index in range(len(columns))]
    words = [isinstance(rows[0].get(column), str) and index == 0 for index, column in enumerate(columns)]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(line, widths, words, strict=True)
        ).rstrip()
        for line in [columns, *shown]
    ]


def _format_cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def _format_ratio(ratio: Ratio) -> str:
    low, high = quartiles(ratio.rounds)
    asked = "" if ratio.least is None else f", at least {ratio.least:g} asked: {'kept' if ratio.holds else 'MISSED'}"
    return f"{ratio.what}: {ratio.median:.2f} times ({low:.2f}..{high:.2f}){asked}"
