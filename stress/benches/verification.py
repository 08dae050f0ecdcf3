"""What verification costs: the same load with nobody who judges, with a judge afterwards, and with one beside it.

Each round plays all of them on one server, in another order, with the same seed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec

from stress.benches.paired import Factor, factor_of
from stress.benches.runs import Judging, Run, play
from stress.benches.served import serving
from targets.protocol import BadInput

WAYS: tuple[Judging, ...] = get_args(Judging)


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way, a figure a round.

    Attributes:
        throughput, ttft: Against nobody who judges; None for that itself.
        responses, judged, wrong, lost: Of all rounds.
    """

    judging: Judging
    tokens_per_s: tuple[float, ...]
    ttft_p99_ms: tuple[float, ...]
    throughput: Factor | None
    ttft: Factor | None
    responses: int
    judged: int
    wrong: int
    lost: int


class Verification(msgspec.Struct, frozen=True):
    """What was measured."""

    users: int
    seconds: float
    rounds: int
    seed: int
    ways: tuple[Way, ...]


def measure(
    users: int, seconds: float, rounds: int, seed: int, words: tuple[str, ...], tell: Callable[[str], None]
) -> Verification:
    """Measures, with more words for `slotfuzz serve`; `tell` hears a line a run.

    Raises:
        BadInput: where there is a run in which nobody was answered.
    """
    runs: dict[Judging, list[Run]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as place, serving(*words) as server:
        for round_ in range(rounds):
            for step in range(len(WAYS)):
                way = WAYS[(round_ + step) % len(WAYS)]
                options = ("-u", str(users), "-r", str(users), "-t", f"{seconds:g}s", "--seed", str(seed + round_))
                run = play(f"http://127.0.0.1:{server.port}", Path(place) / f"{round_}-{way}", way, *options)
                time_ms = _ttft(run)
                if time_ms is None:
                    raise BadInput("--seconds", "such that somebody is answered", seconds, run.said[-500:])
                runs[way].append(run)
                tell(
                    f"round {round_ + 1} of {rounds}, {way}: {_rate(run):.0f} tokens a second, p99 TTFT {_ttft(run):.0f} ms"
                )
    ways = tuple(_way(way, runs[way], runs["none"], seed) for way in WAYS)
    return Verification(users, seconds, rounds, seed, ways)


def _rate(run: Run) -> float:
    return run.ended.figures.tokens_per_s


def _ttft(run: Run) -> float | None:
    rows = run.ended.figures.users.get("visitor")
    return None if rows is None or rows.ttft_ms is None else rows.ttft_ms.p99


def _way(way: Judging, runs: list[Run], none: list[Run], seed: int) -> Way:
    rates, times = ([each for each in map(figure, runs) if each is not None] for figure in (_rate, _ttft))
    bare_rates, bare_times = ([each for each in map(figure, none) if each is not None] for figure in (_rate, _ttft))
    verdicts = [run.verdicts for run in runs if run.verdicts is not None]
    return Way(
        judging=way,
        tokens_per_s=tuple(rates),
        ttft_p99_ms=tuple(times),
        throughput=None if way == "none" else factor_of(rates, bare_rates, seed),
        ttft=None if way == "none" else factor_of(times, bare_times, seed),
        responses=sum(run.ended.figures.account.sent for run in runs),
        judged=sum(each.judged for each in verdicts),
        wrong=sum(each.wrong for each in verdicts),
        lost=sum(each.lost for each in verdicts),
    )


def format_verification(found: Verification) -> str:
    """A line a way."""
    lines = [f"{found.users} users, {found.rounds} rounds of {found.seconds:g} s each, seed {found.seed}"]
    for way in found.ways:
        rate = sum(way.tokens_per_s) / len(way.tokens_per_s)
        time_ms = sum(way.ttft_p99_ms) / len(way.ttft_p99_ms)
        line = f"judged {way.judging:<7} {rate:8.1f} tokens a second, p99 TTFT {time_ms:8.1f} ms"
        if way.throughput is not None:
            line += f"; throughput {way.throughput} times, p99 TTFT {way.ttft} times that with nobody"
            line += f"; {way.judged} of {way.responses} judged, {way.wrong} wrong, {way.lost} lost"
        lines.append(line)
    return "\n".join(lines)
