"""Stores: what each way to keep K and V costs in time and memory. Every function compares a list of variants."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from fuzz.decoder_bench.inside import Allocations, Inside
from fuzz.decoder_bench.measure import CLOCKS, Cell, Effort, Ratio, Table, Way, in_turn, rate_cells, ratio, warm
from fuzz.decoder_bench.variants import Opened
from fuzz.decoder_bench.workload import Server, as_they_come, longest, mixed, settings_for
from targets.protocol import Audit, Factory, Request, Setting

COUNTS = (1, 2, 4, 8, 16, 32, 64)
GROUP = 8
SHORT, LONG = (32, 16), (512, 32)
"""The longest prompt and the longest answer of the two mixes on which page sizes are compared, in tokens."""
BRIEF = (32, 8)
"""The longest prompt and answer where stores are compared: what a step costs shows in a few."""
PREFIX_SHARE = 0.5
FRESH = "a fresh target"


class Costs(NamedTuple):
    """What one store needed for some requests.

    Attributes:
        peak_bytes: Bytes of K and V allocated, at most; None where the target does not say.
        unused: The mean share of them, step by step, that held no cell of a request; None likewise.
        allocations: Allocations a request by the store and the engine; the network's own are left out.
        cache_ms: Milliseconds a step in cache updates: writing, and gathering what the rows may see.
        read_bytes: Bytes of K and V that cache updates gave back, a step.
        counts: What the target counted itself, by name.
    """

    peak_bytes: int | None
    unused: float | None
    allocations: float
    cache_ms: float
    read_bytes: float
    counts: dict[str, int]

    def cells(self) -> dict[str, Cell]:
        """The columns that they fill."""
        return {
            "peak bytes": "-" if self.peak_bytes is None else self.peak_bytes,
            "unused %": "-" if self.unused is None else round(100 * self.unused, 1),
            "allocations/request": round(self.allocations, 1),
            "cache ms/step": round(self.cache_ms, 3),
            "bytes read/step": round(self.read_bytes),
        }


def costs(factory: Factory, settings: dict[str, Setting], requests: Sequence[Request], clock: str) -> Costs:
    """Serves the requests twice on one target: first, which warms it up, allocations are counted; then all else."""
    server, network = Server(factory, settings), factory.module(settings)
    assert network is not None, "a target whose network is within reach"
    with Allocations() as allocations, Inside(network, allocations=allocations):
        server.serve(requests)
    audits: list[Audit] = []
    with Inside(network, CLOCKS[clock]) as timed:
        for _ in server.steps(server.submit(requests)):
            audit = server.target.audit()
            audits += [] if audit is None else [audit]
    server.target.close()
    cell_bytes = timed.bytes_read / timed.cells_read
    told = [(audit, audit.allocated) for audit in audits if audit.allocated]
    unused = [_unused(audit, allocated, cell_bytes) for audit, allocated in told]
    return Costs(
        peak_bytes=max((allocated for _, allocated in told), default=None),
        unused=sum(unused) / len(unused) if unused else None,
        allocations=allocations.count / len(requests),
        cache_ms=1000 * timed.cache_s / timed.forwards,
        read_bytes=timed.bytes_read / timed.forwards,
        counts=audits[-1].counts if audits else {},
    )


def _unused(audit: Audit, allocated: int, cell_bytes: float) -> float:
    """The share of what is allocated that holds no cell of a request; shared cells count once."""
    pages = audit.pages
    if pages is None:
        held = sum(holding.cells for holding in audit.held)
    else:  # the last page of a request may be part empty, the others are full
        full = {page for holding in audit.held for page in holding.pages[: holding.cells // pages.size]}
        part = sum(holding.cells % pages.size for holding in audit.held)
        held = len(full) * pages.size + part
    return max(0.0, 1 - held * cell_bytes / allocated)


def by_store(variants: Sequence[Opened], model: str, effort: Effort) -> Table:
    """Each store at 1 to 64 requests at once: tokens a second, bytes, unused share, allocations, gathering."""
    rows: list[dict[str, Cell]] = []
    ratios: list[Ratio] = []
    counts = COUNTS[:2] if effort.small else COUNTS
    for count in counts:
        settings = {name: settings_for(factory, count, changes) for name, factory, changes in variants}
        requests = mixed(variants[0].factory, count, 0.5, *(longest(small=True) if effort.small else BRIEF))
        ways = {name: functools.partial(Server(factory, settings[name]).serve, requests) for name, factory, _ in variants}
        timings = in_turn(warm(ways), effort._replace(seconds=effort.seconds / len(counts)))
        for name, factory, _ in variants:
            told = costs(factory, settings[name], requests, effort.clock)
            rows.append({"store": name, "requests": count, **rate_cells(timings[name]), **told.cells()})
        first = variants[0].name
        ratios += [ratio(timings, name, first, f"{name} against {first} at {count}") for name in list(ways) if name != first]
    return Table("stores", model, "tokens/s and memory by store", tuple(rows), tuple(ratios))


def by_reuse(variants: Sequence[Opened], model: str, effort: Effort) -> Table:
    """What becomes of a slot with its next owner: short requests, eight at a time, so that slots change hands often.

    Beside the variants: a target that is opened afresh for every eight.
    """
    requests = mixed(variants[0].factory, GROUP if effort.small else 8 * GROUP, 0.0, prompt=8, answer=4)
    groups = as_they_come(requests, GROUP)
    settings = {name: settings_for(factory, GROUP, changes) for name, factory, changes in variants}
    ways: dict[str, Way] = {
        name: functools.partial(Server(factory, settings[name]).in_groups, groups) for name, factory, _ in variants
    }
    first = variants[0]
    ways[FRESH] = lambda: sum(Server(first.factory, settings[first.name]).serve(group) for group in groups)
    timings = in_turn(warm(ways), effort)
    rows = [{"on reuse": name, **rate_cells(timing)} for name, timing in timings.items()]
    ratios = tuple(ratio(timings, first.name, name, f"{first.name} against {name}") for name in ways if name != first.name)
    return Table("reuse", model, "tokens/s by what happens to a slot that is reused", tuple(rows), ratios)


def by_page_size(variants: Sequence[Opened], model: str, effort: Effort) -> Table:
    """Page sizes on a short and a long mix, in which half of each longest prompt is one prefix that all share."""
    rows: list[dict[str, Cell]] = []
    ratios: list[Ratio] = []
    mixes = {"short": longest(small=True)} if effort.small else {"short": SHORT, "long": LONG}
    for mix, (prompt, answer) in mixes.items():
        changes = {name: {"context_tokens_max": prompt + answer, **asked} for name, _, asked in variants}
        settings = {name: settings_for(factory, GROUP, changes[name]) for name, factory, _ in variants}
        requests = _sharing(variants[0].factory, GROUP if effort.small else 2 * GROUP, prompt, answer)
        ways = {name: functools.partial(Server(factory, settings[name]).serve, requests) for name, factory, _ in variants}
        timings = in_turn(warm(ways), effort._replace(seconds=effort.seconds / len(mixes)))
        for name, factory, _ in variants:
            told = costs(factory, settings[name], requests, effort.clock)
            counted = " ".join(f"{what}={count}" for what, count in sorted(told.counts.items()))
            rows.append({"pages": name, "mix": mix, **rate_cells(timings[name]), **told.cells(), "counted": counted})
        first = variants[0].name
        ratios += [ratio(timings, name, first, f"{name} against {first}, {mix}") for name in ways if name != first]
    return Table("pages", model, "tokens/s and memory by page size", tuple(rows), tuple(ratios))


def _sharing(factory: Factory, count: int, prompt: int, answer: int) -> list[Request]:
    """Requests whose lengths are spread by half, and which begin alike."""
    shared = round(prompt * PREFIX_SHARE)
    requests = mixed(factory, count, 0.5, prompt=prompt, answer=answer)
    prefix = max(requests, key=lambda request: len(request.prompt)).prompt[:shared]
    return [
        Request(prompt=prefix + request.prompt[len(prefix) :], max_new_tokens=request.max_new_tokens) for request in requests
    ]
