"""Rivals: the decoder beside transformers' own static `generate` and its own continuous batching, on the same prompts.

Each rival runs on a network of its own, with the same weights. Continuous batching gets what helps it: its pool is sized for
the work (on a CPU it can't do so by itself without another package) and kept from round to round.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers

from fuzz.decoder_bench.measure import Cell, Effort, Table, Way, in_turn, rate_cells, ratio, warm
from fuzz.decoder_bench.workload import DTYPE, Server, longest, mixed, settings_for
from targets.protocol import Factory, Request

GROUP = 8
AGAINST_GENERATE = 0.95
AGAINST_CONTINUOUS = {"tiny": 4.0, "random-50m": 1.3}
OURS, GENERATE, CALLED, RUNNING = "slots", "generate", "generate_batch", "its loop alone"
PAGE_TOKENS = 64


def against_rivals(factory: Factory, model: str, effort: Effort) -> Table:
    """Eight prompts of one length, greedy, no stop: ours, a static `generate`, continuous batching.

    Continuous batching is measured as one calls it (`generate_batch`, which starts and stops a loop in a thread), and as its
    loop alone does, which was started before.
    """
    requests = mixed(factory, GROUP, 0.0, *longest(effort.small))
    server = Server(factory, settings_for(factory, GROUP))
    static, called, running = (factory.network({"dtype": DTYPE}) for _ in range(3))
    _be_quiet()
    answers: dict[str, list[list[int]]] = {}

    def answered(who: str, found: list[list[int]]) -> int:
        answers[who] = found
        return sum(map(len, found))

    with _batching(running, requests) as manager:
        ways: dict[str, Way] = {
            OURS: lambda: server.serve(requests),
            GENERATE: lambda: answered(GENERATE, _generate(static, requests)),
            CALLED: lambda: answered(CALLED, _generate_batch(called, requests)),
            RUNNING: lambda: answered(RUNNING, _batch(manager, requests)),
        }
        timings = in_turn(warm(ways), effort)
    rows: list[dict[str, Cell]] = []
    for name, timing in timings.items():
        pairs = zip(answers.get(name, answers[GENERATE]), answers[GENERATE], strict=True)
        same = "-" if name == OURS else f"{sum(one == other for one, other in pairs)} of {GROUP}"
        rows.append({"who": name, **rate_cells(timing), "answers as generate's": same})
    ratios = (
        ratio(timings, OURS, GENERATE, "against generate", AGAINST_GENERATE),
        ratio(timings, OURS, CALLED, "against generate_batch", AGAINST_CONTINUOUS.get(model)),
        ratio(timings, OURS, RUNNING, "against its loop alone"),
    )
    prompt, answer = longest(effort.small)
    title = f"{GROUP} prompts of {prompt} tokens, {answer} new tokens each"
    return Table("rivals", model, title, tuple(rows), ratios)


def _be_quiet() -> None:
    """Continuous batching logs as an error that it misses psutil, without which it can't size its pool; we size it."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


def _generate(network: Any, requests: Sequence[Request]) -> list[list[int]]:
    """Transformers' `generate` on prompts of one length: the answers."""
    network.generation_config.eos_token_id = None
    ids = torch.tensor([request.prompt for request in requests])
    count = requests[0].max_new_tokens
    with torch.inference_mode():
        whole = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    answers: list[list[int]] = whole[:, ids.shape[1] :].tolist()
    return answers


def _pool(requests: Sequence[Request]) -> Any:
    """A pool that holds all of the requests, and a step that takes all of their prompts."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    return transformers.ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=len(requests) * -(-longest // PAGE_TOKENS) + 1,
        max_batch_tokens=sum(len(request.prompt) for request in requests),
        allow_block_sharing=False,
    )


def _greedy(requests: Sequence[Request]) -> Any:
    return transformers.GenerationConfig(
        do_sample=False, eos_token_id=-1, max_new_tokens=requests[0].max_new_tokens, pad_token_id=0
    )


def _generate_batch(network: Any, requests: Sequence[Request]) -> list[list[int]]:
    """Continuous batching in one call; its manager and its pool are kept for the next one."""
    told = network.generate_batch(
        [list(request.prompt) for request in requests],
        generation_config=_greedy(requests),
        continuous_batching_config=_pool(requests),
        persistent_manager=True,
    )
    return [result.generated_tokens for result in told.values()]


@contextlib.contextmanager
def _batching(network: Any, requests: Sequence[Request]) -> Iterator[Any]:
    """Continuous batching that runs in its thread until the end."""
    manager = network.init_continuous_batching(
        generation_config=_greedy(requests), continuous_batching_config=_pool(requests)
    )
    with torch.inference_mode():
        manager.start()
    try:
        yield manager
    finally:
        manager.stop(block=True)
        manager.destroy()


def _batch(manager: Any, requests: Sequence[Request]) -> list[list[int]]:
    """Hands the prompts to a running loop and waits for all answers, in the order of the requests."""
    prompts = [list(request.prompt) for request in requests]
    names = manager.add_requests(prompts, max_new_tokens=requests[0].max_new_tokens)
    found: dict[str, list[int]] = {}
    while len(found) < len(names):
        result = manager.get_result(timeout=1)
        assert manager.is_running(), "continuous batching goes on running"
        if result is not None and result.is_finished():
            found[result.request_id] = result.generated_tokens
    return [found[name] for name in names]
