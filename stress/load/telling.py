"""Telling: a run's figures on a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from stress.load.figures import Figures, Spread
from stress.load.gauged import Gauged

ROWS = (
    ("TTFT ms", "ttft_ms"),
    ("ITL ms", "itl_ms"),
    ("TPOT ms", "tpot_ms"),
    ("end to end ms", "e2e_ms"),
    ("tokens/s", "tokens_per_s"),
)
LOST_SHOWN = 5


def tell(figures: Figures, gauges: Gauged | None, unsent: int) -> str:
    """All that is worth a line."""
    return "\n".join(_lines(figures, gauges, unsent))


def _lines(figures: Figures, gauges: Gauged | None, unsent: int) -> Iterator[str]:
    account = figures.account
    yield ""
    yield f"{figures.tokens} tokens in {figures.seconds:.1f} s, {figures.tokens_per_s:.0f} a second"
    for user, rows in figures.users.items():
        yield f"{user}: {rows.answered} answered, {rows.tokens} tokens"
        for name, field in ROWS:
            spread: Spread | None = getattr(rows, field)
            if spread is not None:
                yield (
                    f"  {name:<14} p50 {spread.p50:>9.1f}  p90 {spread.p90:>9.1f}  p95 {spread.p95:>9.1f}"
                    f"  p99 {spread.p99:>9.1f}  max {spread.max:>9.1f}"
                )
    if figures.goodput is not None:
        good = figures.goodput
        correct = "" if good.correct is None else f"; kept and right {good.correct}, {good.correct_per_s:.2f} a second"
        missed = "".join(f", {why} {count}" for why, count in sorted(good.missed.items()))
        yield f"goodput: {good.kept} of {good.asked} kept the SLO, {good.kept_per_s:.2f} a second{missed}{correct}"
    if figures.noise is not None:
        noise = figures.noise
        yield (
            f"beside noise victims' TTFT is {noise.ttft_p50:.2f} times (p99 {noise.ttft_p99:.2f})"
            f" and ITL {noise.itl_p50:.2f} times (p99 {noise.itl_p99:.2f}) that in quiet"
        )
    if gauges is not None:
        yield from _gauges(gauges)
    yield (
        f"{account.sent} sent: {account.answered} answered, {account.cancelled} hung up, {account.refused} refused,"
        f" {account.failed} failed, {account.unreached} found no connection, {account.lost} lost"
        + (f"; {unsent} not sent, as too many were in flight" if unsent else "")
    )
    for lost in account.in_flight[:LOST_SHOWN]:
        yield f"  lost: {lost.user} {lost.process}:{lost.number}, after {lost.heard_pieces} pieces: {lost.error}"
    if account.lost > LOST_SHOWN:
        yield f"  and {account.lost - LOST_SHOWN} more (load.json)"


def _gauges(gauges: Gauged) -> Iterator[str]:
    """What the endpoint said of itself."""
    if not gauges.looks:
        yield "the endpoint tells no gauges"
        return
    if not gauges.idle_looks:
        yield "the endpoint was never seen idle"
        return
    held = ", ".join(f"{name} {value:g}" for name, value in gauges.held_idle.items())
    yield f"gauges when idle ({gauges.idle_looks} looks): " + (f"NOT given back: {held}" if held else "all zero")
    for name, first in gauges.memory_first_bytes.items():
        last = gauges.memory_last_bytes[name]
        yield f"memory {name}: {first / 1e6:.1f} MB, at the end {last / 1e6:.1f} MB ({(last - first) / 1e6:+.1f})"
