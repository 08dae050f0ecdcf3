"""What HTTP costs: the same requests as streams through the endpoint and in process, by the processor's time of the decoder.

Both have so many clients that each ask for one answer after another. The clients of the endpoint are in this process, whose
time does not count. Rounds alternate, so that a machine that is slower for a while is so for both.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec
import trio

from fuzz.strategies.requests import Space
from stress.benches.served import Served, serving
from stress.benches.wire import asked, connected, read_reply
from targets.protocol import Emitted, Finished, Request, Setting
from targets.registry import TargetSpec, build

PROMPTS = (4, 12, 31, 48, 64)


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        each: Requests of each client.
        tokens: Of each answer.
    """

    spec: TargetSpec
    settings: dict[str, Setting]
    slots: int
    clients: int
    each: int
    tokens: int
    rounds: int
    seed: int


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Processor's microseconds a token, by round; `ratio` of each round is in process over streamed."""

    in_process_us: tuple[float, ...]
    streamed_us: tuple[float, ...]
    whole_us: tuple[float, ...]
    ratio: float
    ratio_whole: float
    streamed_token_us: float
    whole_token_us: float
    tokens_per_s: float


def measure(bench: Bench) -> Costs:
    """Measures; the server and the process of the decoder are there for all rounds."""
    requests = _requests(bench)
    tokens = bench.clients * bench.each * bench.tokens
    inside, streamed, whole, seconds = [], [], [], []
    context = multiprocessing.get_context("spawn")
    words = [f"{name}={value}" for name, value in bench.settings.items() if name != "dtype"]
    flags = [flag for word in words for flag in ("--set", word)]
    flags += ["--dtype", str(bench.settings["dtype"]), "--set", f"slots={bench.slots}"]
    flags += ["--target", bench.spec.target, "--model", bench.spec.model, "--queue-max", "4096"]
    with ProcessPoolExecutor(1, mp_context=context) as pool, serving(*flags) as server:
        settings = {**bench.settings, "slots": bench.slots}
        for round_ in range(bench.rounds + 1):
            measured = pool.submit(run_inside, bench.spec, settings, requests).result()
            began_s = time.monotonic()
            through = trio.run(_run_through, server, requests, True)
            took_s = time.monotonic() - began_s
            at_once = trio.run(_run_through, server, requests, False)
            if round_:  # the first one warms up
                inside.append(1e6 * measured / tokens)
                streamed.append(1e6 * through / tokens)
                whole.append(1e6 * at_once / tokens)
                seconds.append(took_s)
    return Costs(
        in_process_us=tuple(inside),
        streamed_us=tuple(streamed),
        whole_us=tuple(whole),
        ratio=statistics.median(a / b for a, b in zip(inside, streamed, strict=True)),
        ratio_whole=statistics.median(a / b for a, b in zip(inside, whole, strict=True)),
        streamed_token_us=statistics.median(b - a for a, b in zip(inside, streamed, strict=True)),
        whole_token_us=statistics.median(b - a for a, b in zip(inside, whole, strict=True)),
        tokens_per_s=tokens / statistics.median(seconds),
    )


def _requests(bench: Bench) -> list[list[Request]]:
    """Requests of each client."""
    factory = build(bench.spec)
    space, drawn = Space.of(factory), random.Random(bench.seed)
    return [
        [
            Request(prompt=space.piece(drawn.choice(PROMPTS), drawn.randrange(4096)), max_new_tokens=bench.tokens)
            for _ in range(bench.each)
        ]
        for _ in range(bench.clients)
    ]


def run_inside(spec: TargetSpec, settings: Mapping[str, Setting], requests: Sequence[Sequence[Request]]) -> float:
    """Plays all clients on a target in this process; returns the processor's seconds of it."""
    import torch

    torch.set_num_threads(1)
    target = build(spec).open(settings)
    waiting = [list(each) for each in requests]
    client_of: dict[int, int] = {}
    began_s = time.process_time()

    def ask(client: int) -> None:
        if waiting[client]:
            client_of[len(client_of)] = client
            target.submit(len(client_of) - 1, waiting[client].pop(0))

    for client in range(len(waiting)):
        ask(client)
    ended = tokens = 0
    while ended < len(client_of):
        for event in target.step():
            tokens += isinstance(event, Emitted)
            if isinstance(event, Finished):
                ended += 1
                ask(client_of[event.submission])
    took_s = time.process_time() - began_s
    target.close()
    assert tokens == sum(request.max_new_tokens for each in requests for request in each), "all was answered"
    return took_s


async def _run_through(server: Served, requests: Sequence[Sequence[Request]], stream: bool) -> float:
    """Plays all clients on the endpoint; returns the processor's seconds of its process."""

    async def client(mine: Sequence[Request]) -> None:
        async with connected(server.port) as connection:
            for request in mine:
                await connection.send_all(asked(list(request.prompt), request.max_new_tokens, stream))
                reply = await read_reply(connection)
                assert reply.status == 200, reply
                assert not stream or reply.events >= request.max_new_tokens, reply.events

    began_s = server.processor_s
    async with trio.open_nursery() as nursery:
        for mine in requests:
            nursery.start_soon(client, mine)
    return server.processor_s - began_s


def format_costs(costs: Costs) -> str:
    """A line a figure."""
    rows = [
        ("in process", costs.in_process_us),
        ("streamed through HTTP", costs.streamed_us),
        ("whole through HTTP", costs.whole_us),
    ]
    lines = [
        f"{name:<24} {statistics.median(each):9.1f} µs a token ({min(each):.1f} to {max(each):.1f})" for name, each in rows
    ]
    lines.append(f"{'streamed, of in process':<24} {costs.ratio:9.3f}   {costs.streamed_token_us:.0f} µs more a token")
    lines.append(f"{'whole, of in process':<24} {costs.ratio_whole:9.3f}   {costs.whole_token_us:.0f} µs more a token")
    lines.append(f"{'streamed tokens':<24} {costs.tokens_per_s:9.0f} a second by the clock")
    return "\n".join(lines)
