"""Caching: what a step spends outside the network, in the cache, and what it would spend without one."""

from __future__ import annotations

import functools
import inspect
import statistics
import time
from typing import Any

import torch

from fuzz.decoder_bench.inside import Inside
from fuzz.decoder_bench.measure import CLOCKS, Cell, Effort, Ratio, Table, Way, in_turn, quartiles, rate_cells, ratio, warm
from fuzz.decoder_bench.workload import DTYPE, Server, longest, mixed, settings_for
from targets.models import logits_of
from targets.protocol import Factory

GROUP = 8
OUTSIDE = {"random-50m": 0.10}
"""The share of a step that may be spent outside the network's forward, by model."""
CONTEXTS = (64, 256, 1024)
_STEPS = 8


def outside_forwards(factory: Factory, model: str, effort: Effort) -> Table:
    """Shares of a decode step of 8 rows: outside the network's forward, and in the cache, which is inside it.

    The forward is timed by hooks on the network, cache updates by a cache that stands before the target's own.
    """
    settings = settings_for(factory, GROUP)
    server, network = Server(factory, settings), factory.module(settings)
    assert network is not None, "a target whose network is within reach"
    requests = mixed(factory, GROUP, 0.0, *longest(effort.small))
    steps_ms: list[float] = []
    outside: list[float] = []
    cached: list[float] = []
    now = CLOCKS[effort.clock]
    server.serve(requests)
    ends = time.perf_counter() + effort.seconds
    while len(steps_ms) < effort.rounds_min or (time.perf_counter() < ends and len(steps_ms) < effort.rounds_max):
        waiting = server.submit(requests)
        server.target.step()  # the prompts
        with Inside(network, now) as inside:
            started = now()
            for _ in server.steps(waiting):
                pass
            seconds = now() - started
        steps_ms.append(1000 * seconds / inside.forwards)
        outside.append(1 - inside.forward_s / seconds)
        cached.append(inside.cache_s / seconds)
    rows: list[dict[str, Cell]] = []
    for what, shares in (("outside the forward", outside), ("in cache updates", cached)):
        low, high = quartiles(shares)
        row: dict[str, Cell] = {"share of a step": what, "median %": round(100 * statistics.median(shares), 1)}
        rows.append({**row, "quartiles": f"{100 * low:.1f}..{100 * high:.1f}", "rounds": len(shares)})
    limits = [("outside the forward", statistics.median(outside), OUTSIDE[model])] if model in OUTSIDE else []
    note = f"a step of {GROUP} decodes takes {statistics.median(steps_ms):.2f} ms"
    return Table("outside", model, f"where a step of {GROUP} rows goes", tuple(rows), limits=tuple(limits), notes=(note,))


def with_and_without_cache(factory: Factory, model: str, effort: Effort) -> Table:
    """One request: a cached step around T tokens of context against a forward of all T tokens, which gives one token too.

    The forward without a cache computes the logits of its last token only, where the network can leave out the others.
    """
    most = factory.context_tokens_max(settings_for(factory, 1, {"context_tokens_max": _longest(factory)}))
    contexts = [context for context in CONTEXTS[: 1 if effort.small else None] if context + _STEPS <= most]
    network = factory.network({"dtype": DTYPE})
    rows: list[dict[str, Cell]] = []
    ratios: list[Ratio] = []
    for context in contexts:
        decoding = _Decoding(factory, context)
        ways: dict[str, Way] = {
            "cached": decoding.steps,
            "recomputed": functools.partial(_recomputed, network, decoding.ids),
        }
        share = effort._replace(seconds=effort.seconds / len(contexts))
        decoding.prepare()
        timings = in_turn(warm(ways), share, decoding.prepare)
        rows += [{"context": context, "step": name, **rate_cells(timing)} for name, timing in timings.items()]
        ratios.append(ratio(timings, "cached", "recomputed", f"cached against recomputed at {context} tokens"))
    return Table("cache", model, "a token with a KV cache and without", tuple(rows), tuple(ratios))


def _longest(factory: Factory) -> int:
    """The longest context that the target can be opened with."""
    knob = next(knob for knob in factory.knobs if knob.name == "context_tokens_max")
    return int(knob.high if knob.high is not None else max(map(int, knob.values)))


class _Decoding:
    """A request that has had its prompt and has some steps left to take, around T tokens of context."""

    def __init__(self, factory: Factory, context: int) -> None:
        self.server = Server(factory, settings_for(factory, 1, {"context_tokens_max": context + _STEPS}))
        (request,) = mixed(factory, 1, 0.0, prompt=context - _STEPS // 2, answer=1 + _STEPS)
        self.request = request
        self.ids = torch.tensor([(*request.prompt, *request.prompt[: _STEPS // 2])])

    def prepare(self) -> None:
        """Runs the prompt, which gives the first token."""
        self.server.submit([self.request])
        self.server.target.step()

    def steps(self) -> int:
        """Takes the steps, a token each, and says how many."""
        return sum(1 for _ in self.server.steps(1))


def _recomputed(network: Any, ids: torch.Tensor) -> int:
    """A forward of everything, for one token."""
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(network.forward).parameters else {}
    with torch.inference_mode():
        logits_of(network(input_ids=ids, use_cache=False, **last_only))[:, -1].argmax(-1)
    return 1
