"""A small load: clients that ask as the fuzzer draws requests, hang up now and then, and write down all that they hear."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import msgspec
import trio

from fuzz.strategies import Space, batches, schedules
from stress.judging.asking import Endpoint, endpoint
from stress.transcript import Begun, Heard, format_line
from targets.protocol import Request, submissions
from targets.registry import TargetSpec, build

CONTEXT = 250


def asked(seed: int, target: str = "slots") -> list[Request]:
    """Requests as they stand in schedules that are drawn by a seed; those that HTTP can ask for."""
    found: list[Request] = []
    for schedule in batches(schedules(Space.of(build(TargetSpec(target)))), seed):
        for request in submissions(schedule):
            plain = msgspec.structs.replace(
                request, continues=None, sample_of=None, client_id=None, deadline_s=None, forced=(), stop_sequences=()
            )
            asked = plain.sampling
            possible = (
                max(abs(asked.presence_penalty), abs(asked.frequency_penalty)) <= 2
                and asked.temperature <= 2
                and asked.repetition_penalty <= 10
                and asked.logprobs <= 5
                and all(abs(added) <= 100 for _, added in asked.bias)
                and not (asked.min_new_tokens and asked.min_new_tokens > plain.max_new_tokens)
            )
            if possible and plain.max_new_tokens and len(plain.prompt) + plain.max_new_tokens < CONTEXT:
                found.append(plain)
        if len(found) > 4000:
            return found
    return found


async def load(url: str, folder: Path, clients: int, seconds: float, seed: int, count: int | None = None) -> int:
    """Loads an endpoint for so long, or with so many requests, and returns how many there were."""
    requests = asked(seed)
    chance = random.Random(seed)
    (folder / "transcripts").mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    number = 0
    with (folder / "transcripts" / f"{seed}.jsonl").open("wb") as file:

        async def client(served: Endpoint) -> None:
            nonlocal number
            while time.monotonic() < until and (count is None or number < count):
                mine, number = number, number + 1
                request = requests[mine % len(requests)]
                leaves = 1 + chance.randrange(request.max_new_tokens) if chance.random() < 0.2 else None
                scope = trio.CancelScope()
                begun = Begun(number=mine, user="small", request=request, sent_s=time.monotonic())
                file.write(format_line(begun))

                def hear(tokens: int, leaves: int | None = leaves, scope: trio.CancelScope = scope) -> None:
                    if leaves is not None and tokens >= leaves:
                        scope.cancel()

                file.write(format_line(Heard(exchange=await served.ask(request, mine, "small", hear, scope))))

        async with endpoint(url) as served, trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(client, served)
    return number


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("url")
    words.add_argument("folder", type=Path)
    words.add_argument("--clients", type=int, default=64)
    words.add_argument("--seconds", type=float, default=20)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--count", type=int)
    given = words.parse_args()
    print(trio.run(load, given.url, given.folder, given.clients, given.seconds, given.seed, given.count))
