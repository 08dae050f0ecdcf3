"""Claims: what is usually said of batching and KV caches, each beside what the tables say of it here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from fuzz.decoder_bench.measure import Ratio, Table
from fuzz.decoder_bench.stores import FRESH
from fuzz.decoder_bench.throughput import AT_ONCE, IN_GROUPS, MIXES

SWEET_PAGE = "16"


class Claim(msgspec.Struct, frozen=True):
    """A usual claim, what was measured, and whether it holds; None where nothing was measured."""

    claim: str
    measured: str = ""
    holds: bool | None = None


def claims(tables: Sequence[Table]) -> list[Claim]:
    """Judges every claim by one model's tables; a claim whose part was not run is not measured."""
    ratios = {(table.part, ratio.what): ratio for table in tables for ratio in table.ratios}
    padded = {
        str(row["served"]): (float(row["padded cells %"]), float(row["padded tokens %"]))
        for table in tables
        if table.part == "spread"
        for row in table.rows
        if row["spread"] == "80%"
    }

    def compared(part: str, what: str, claim: str, least: float = 0.0, most: float = math.inf) -> Claim:
        ratio = ratios.get((part, what))
        if ratio is None:
            return Claim(claim)
        aside = " (less)" if ratio.median < least else " (more)" if ratio.median > most else ""
        return Claim(claim, f"{ratio.median:.2f} times{aside}", not aside)

    serial = f"{IN_GROUPS} against one by one, spread"
    return [
        *(
            compared(
                "cache",
                f"cached against recomputed at {context} tokens",
                f"a KV cache makes a token cheaper at {context} tokens of context",
                least=1,
            )
            for context in (64, 256, 1024)
        ),
        compared("spread", f"{serial} 20%", "batching is 3 to 4 times serial when lengths are within 20%", least=3, most=4),
        compared("spread", f"{serial} 80%", "with lengths far apart a batch is slower than one by one", most=1),
        *_padding_claim(padded),
        compared(
            "spread", "buckets against none, spread 80%", "length buckets are faster when lengths are far apart", least=1.05
        ),
        *(
            compared("batch", f"batch 8 to 16, {mix}", f"8 to 16 gives another 1.5 times, {mix}", least=1.4, most=1.6)
            for mix in MIXES
        ),
        *(compared("batch", f"batch 16 to 32, {mix}", f"beyond 16 it is little or worse, {mix}", most=1.1) for mix in MIXES),
        compared(
            "reuse",
            f"length only against {FRESH}",
            "reusing slots is 15 to 20% faster than allocating",
            least=1.15,
            most=1.2,
        ),
        _isolation(ratios),
        _sweet_page(tables),
        _memory(),
    ]


def _padding_claim(padded: dict[str, tuple[float, float]]) -> list[Claim]:
    claim = "padding is above 70% when lengths differ a lot"
    if not padded:
        return [Claim(claim)]
    return [
        Claim(f"{claim}, {way}", "{:.0f}% of the cells, {:.0f}% of the tokens".format(*padded[way]), max(padded[way]) > 70)
        for way in (IN_GROUPS, AT_ONCE)
    ]


def _isolation(ratios: dict[tuple[str, str], Ratio]) -> Claim:
    """Whether private caches are faster than slots at up to 4 requests."""
    claim = "one cache for each request is faster at small batches"
    found = {count: ratios.get(("stores", f"private against slots at {count}")) for count in (1, 2, 4)}
    measured = {count: ratio.median for count, ratio in found.items() if ratio is not None}
    if not measured:
        return Claim(claim)
    return Claim(
        claim, ", ".join(f"{times:.2f} times at {count}" for count, times in measured.items()), min(measured.values()) > 1
    )


def _sweet_page(tables: Sequence[Table]) -> Claim:
    """Whether a page of 16 is the fastest on both mixes."""
    claim = "16 is the best page size"
    best: dict[str, tuple[float, str]] = {}
    for row in (row for table in tables if table.part == "pages" for row in table.rows):
        name, mix, rate = str(row["pages"]), str(row["mix"]), float(row["tokens/s"])
        if name.isdigit() and rate > best.get(mix, (0.0, ""))[0]:
            best[mix] = (rate, name)
    if not best:
        return Claim(claim)
    measured = ", ".join(f"{name} on the {mix} mix" for mix, (_, name) in best.items())
    return Claim(claim, f"the fastest is {measured}", all(name == SWEET_PAGE for _, name in best.values()))


def _memory() -> Claim:
    """2 · L · S · H · T · D · bytes: K and V, for 24 layers, 16 heads of 64, 2,048 positions, one request, float16."""
    told = 2 * 24 * 1 * 16 * 2048 * 64 * 2
    claim = "24 layers, 16 heads of 64, 2,048 positions in float16 take 402 MB"
    return Claim(claim, f"{told:,} bytes", round(told / 1e6) == 402)
