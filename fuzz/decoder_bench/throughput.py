"""Throughput: tokens a second by batch size, by spread of lengths, and by who shares a forward with a prompt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from fuzz.decoder_bench.inside import padding
from fuzz.decoder_bench.measure import CLOCKS, Cell, Effort, Ratio, Table, Timing, Way, in_turn, rate_cells, ratio
from fuzz.decoder_bench.workload import Server, alike, as_they_come, longest, mixed, settings_for
from targets.protocol import Factory, Request

SIZES = (1, 2, 4, 8, 16, 32, 64)
MIXES = {"equal": 0.0, "spread 80%": 0.8}
SPREADS = (0.0, 0.2, 0.5, 0.8)
GROUP = 8
SCALING = {"tiny": 5.0, "random-50m": 4.0}
"""How many times as fast 8 requests at once should be as one at a time, by model."""
AT_ONCE, IN_GROUPS, IN_BUCKETS, ALONE = "refilled", "in groups", "in buckets", "one by one"


def by_batch_size(factory: Factory, model: str, effort: Effort) -> Table:
    """Tokens a second at batch 1 to 64, at two length mixes, with the padding share of each.

    Batch B is B slots and B requests handed in at once, prefill included; the next B come when all have ended. Every size
    below 8 serves the same 8 requests.
    """
    sizes = SIZES[:4] if effort.small else SIZES
    rows: list[dict[str, Cell]] = []
    ratios: list[Ratio] = []
    for mix, spread in MIXES.items():
        ways: dict[str, _Waves] = {}
        shares = {}
        for size in sizes:
            settings = settings_for(factory, size)
            server = Server(factory, settings)
            groups = as_they_come(mixed(factory, max(size, GROUP), spread, *longest(effort.small)), size)
            shares[f"{size}"] = padding(server, factory.module(settings), groups)
            ways[f"{size}"] = _Waves(server, groups, CLOCKS[effort.clock])
        timings = in_turn(ways, effort._replace(seconds=effort.seconds / len(MIXES)))
        for name, timing in timings.items():
            decodes: dict[str, Cell] = {"decode tokens/s": ways[name].decodes().rate}
            rows.append({"lengths": mix, "batch": int(name), **rate_cells(timing), **decodes, **shares[name].row()})
        for one, more in [("1", "8"), *((f"{size}", f"{2 * size}") for size in sizes if size >= 8 and 2 * size in sizes)]:
            least = SCALING.get(model) if (one, mix) == ("1", "equal") else None
            ratios.append(ratio(timings, more, one, f"batch {one} to {more}, {mix}", least))
        alone = {name: way.decodes() for name, way in ways.items()}
        ratios.append(ratio(alone, "8", "1", f"batch 1 to 8, {mix}, without the prompts' steps"))
    return Table("batch", model, "tokens/s by batch size", tuple(rows), tuple(ratios), notes=(_MIX_NOTE,))


class _Waves:
    """Serves groups one after another; the steps behind the first of a group, which takes its prompts, are timed apart."""

    def __init__(self, server: Server, groups: Sequence[Sequence[Request]], now: Callable[[], float]) -> None:
        self.server = server
        self.groups = groups
        self.now = now
        self.tokens: list[int] = []
        self.seconds: list[float] = []

    def __call__(self) -> int:
        """Serves them, and returns how many tokens they were given."""
        tokens, seconds = 0, 0.0
        for group in self.groups:
            begun = None
            for ended in self.server.steps(self.server.submit(group)):
                begun = self.now() if begun is None else begun
                tokens += ended
            seconds += self.now() - (begun or 0.0)
        self.tokens.append(tokens - sum(map(len, self.groups)))
        self.seconds.append(seconds)
        return tokens

    def decodes(self) -> Timing:
        """The tokens behind each request's first, and the seconds that they took, round by round."""
        return Timing(tuple(self.tokens), tuple(self.seconds))


_MIX_NOTE = "prompts and answers of up to 32 tokens each; tokens are new tokens, and prefill is in the time"


def by_spread(factory: Factory, model: str, effort: Effort) -> Table:
    """Batched against one by one at four spreads of length, without length buckets and with them.

    The same requests are served through 8 slots that are refilled as they fall free, in groups of 8 as they come, in groups
    of 8 of like length, and through one slot.
    """
    count = GROUP if effort.small else 2 * GROUP
    rows: list[dict[str, Cell]] = []
    ratios: list[Ratio] = []
    for spread in SPREADS:
        requests = mixed(factory, count, spread, *longest(effort.small))
        grouped = {
            AT_ONCE: (GROUP, [requests]),
            IN_GROUPS: (GROUP, as_they_come(requests, GROUP)),
            IN_BUCKETS: (GROUP, alike(requests, GROUP)),
            ALONE: (1, [requests]),
        }
        served: dict[str, Way] = {}
        shares = {}
        for name, (slots, groups) in grouped.items():
            settings = settings_for(factory, slots)
            server = Server(factory, settings)
            shares[name] = padding(server, factory.module(settings), groups)
            served[name] = functools.partial(server.in_groups, groups)
        timings = in_turn(served, effort._replace(seconds=effort.seconds / len(SPREADS)))
        for name, share in shares.items():
            rows.append({"spread": f"{spread:.0%}", "served": name, **rate_cells(timings[name]), **share.row()})
        ratios += [
            ratio(timings, name, ALONE, f"{name} against one by one, spread {spread:.0%}")
            for name in (AT_ONCE, IN_GROUPS, IN_BUCKETS)
        ]
        ratios.append(ratio(timings, IN_BUCKETS, IN_GROUPS, f"buckets against none, spread {spread:.0%}"))
    return Table("spread", model, "tokens/s by spread of lengths", tuple(rows), tuple(ratios), notes=(_MIX_NOTE,))


def by_prefill(factory: Factory, model: str, effort: Effort) -> Table:
    """Who shares a forward with a prompt, at lengths spread by 80%, 4 requests for each of 8 slots."""
    requests = mixed(factory, GROUP if effort.small else 4 * GROUP, 0.8, *longest(effort.small))
    knob = next(knob for knob in factory.knobs if knob.name == "prefill")
    ways: dict[str, Way] = {}
    shares = {}
    for value in knob.values:
        settings = settings_for(factory, GROUP, {"prefill": value})
        server = Server(factory, settings)
        shares[str(value)] = padding(server, factory.module(settings), [requests])
        ways[str(value)] = functools.partial(server.serve, requests)
    timings = in_turn(ways, effort)
    rows: list[dict[str, Cell]] = []
    for name, timing in timings.items():
        rows.append({"prefill": name, **rate_cells(timing), **shares[name].row()})
    first = str(knob.default)
    ratios = tuple(ratio(timings, name, first, f"{name} against {first}") for name in ways if name != first)
    return Table("prefill", model, "tokens/s by who shares a forward with a prompt", tuple(rows), ratios)
