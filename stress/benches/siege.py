"""The siege: every attack in turn on one server, while innocent clients go on asking.

Nothing may be held when an attack is over, every error is one of OpenAI's API, memory does not grow with the number of
attackers, and the innocents' answers stay what they are alone.
"""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import trio

from stress.benches.attacks import (
    AT_ONCE,
    Answer,
    Attack,
    Field,
    crowd,
    malformed,
    never_sends,
    oversized,
    slow_reader,
    slow_sender,
    vanish,
)
from stress.benches.served import Served, serving
from stress.benches.wire import asked, connected, read_reply

SETTLE_S = 30.0
INNOCENTS = 4
INNOCENT_TOKENS = 24
BODY_BYTES_MAX = 100_000
QUEUE_MAX = 256
WRONG_SHOWN = 3


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one attack.

    Attributes:
        statuses: Of what was answered, as text, with how often; 0 is no answer.
        wrong: What was wrong with an answer, with how often.
        held: What the server still held afterwards.
        resident_mb: Its memory then.
        innocent, innocent_refused: Answers to others meanwhile that were compared; those that found the queue full.
        innocent_wrong: As many of the compared differed from the answers when idle.
    """

    name: str
    sent: int
    seconds: float
    statuses: dict[str, int]
    wrong: dict[str, int]
    held: dict[str, float]
    resident_mb: float
    innocent: int
    innocent_refused: int
    innocent_wrong: int

    @property
    def repelled(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.wrong or self.held or self.innocent_wrong)


class Siege(msgspec.Struct, frozen=True, kw_only=True):
    """All attacks; `resident_mb` before the first one, when the server had warmed up."""

    seed: int
    resident_mb: float
    waves: tuple[Wave, ...]
    exit_code: int

    @property
    def repelled(self) -> bool:
        """Whether nothing was wrong, and the server got everything back at its end."""
        return all(wave.repelled for wave in self.waves) and self.exit_code == 0


def lay_siege(words: tuple[str, ...], scale: float, seed: int) -> Siege:
    """Starts a server with more words for `slotfuzz serve` and attacks it; `scale` 1 is 1,000 who vanish."""
    limits = ("--queue-max", str(QUEUE_MAX), "--body-bytes-max", str(BODY_BYTES_MAX))
    with serving(*limits, *words) as server:
        resident_mb, waves = trio.run(_lay_siege, server, scale, random.Random(seed))
    return Siege(seed=seed, resident_mb=resident_mb, waves=waves, exit_code=server.process.returncode)


async def _lay_siege(server: Served, scale: float, drawn: random.Random) -> tuple[float, tuple[Wave, ...]]:
    field = Field(server.port, BODY_BYTES_MAX, QUEUE_MAX, drawn)
    attacks: tuple[tuple[Attack, int, int], ...] = (
        (vanish, 1000, AT_ONCE),
        (malformed, 10_000, AT_ONCE),
        (slow_reader, 100, AT_ONCE),
        (slow_sender, 100, 100),
        (oversized, 100, 16),
        (crowd, 1000, 1000),
        (never_sends, 50, 50),
    )
    answers = [await _innocent_answer(server.port, which) for which in range(INNOCENTS)]
    for attack, _, _ in attacks[:2]:  # buffers and caches of the server grow once
        await _attack(attack, field, AT_ONCE, AT_ONCE)
    resident_mb = server.resident_bytes / 1e6
    waves = [
        await _wave(server, field, attack, max(1, int(count * scale)), at_once, answers)
        for attack, count, at_once in attacks
    ]
    return resident_mb, tuple(waves)


async def _wave(server: Served, field: Field, attack: Attack, count: int, at_once: int, answers: list[bytes]) -> Wave:
    began_s = trio.current_time()
    innocent = Counter[str]()
    async with trio.open_nursery() as nursery:
        for which in range(INNOCENTS):
            nursery.start_soon(_ask_innocently, server.port, which, answers[which], innocent)
        found = await _attack(attack, field, count, at_once)
        nursery.cancel_scope.cancel()
    held = await server.settle(SETTLE_S)
    return Wave(
        name=attack.__name__,
        sent=len(found),
        seconds=trio.current_time() - began_s,
        statuses=dict(Counter(str(answer.status) for answer in found).most_common()),
        wrong=dict(Counter(answer.wrong for answer in found if answer.wrong).most_common()),
        held=held,
        resident_mb=server.resident_bytes / 1e6,
        innocent=innocent["right"] + innocent["wrong"],
        innocent_refused=innocent["refused"],
        innocent_wrong=innocent["wrong"],
    )


async def _attack(attack: Attack, field: Field, count: int, at_once: int) -> list[Answer]:
    """So many attackers, so many at once."""
    found: list[Answer] = []
    room = trio.CapacityLimiter(at_once)

    async def one() -> None:
        async with room:
            try:
                found.append(await attack(field))
            except OSError as error:
                found.append(Answer(0, f"no connection: {error}"))
            except trio.BrokenResourceError:
                found.append(Answer(0, "the connection broke"))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return found


async def _innocent_answer(port: int, which: int) -> bytes:
    """The answer to one of the innocents' requests; empty where it was refused."""
    prompt = [(7 * which + 3 * place) % 256 for place in range(12 + which)]
    async with connected(port) as stream:
        await stream.send_all(asked(prompt, INNOCENT_TOKENS, stream=False))
        reply = await read_reply(stream)
    if reply.status == 429:
        return b""
    return msgspec.json.encode(reply.json["choices"][0]["token_ids"]) if reply.status == 200 else b"failed"


async def _ask_innocently(port: int, which: int, expected: bytes, counted: Counter[str]) -> None:
    """Asks the same again and again, until it is cancelled."""
    while True:
        try:
            answer = await _innocent_answer(port, which)
        except (OSError, trio.BrokenResourceError):
            answer = b"failed"
        counted["right" if answer == expected else "wrong" if answer else "refused"] += 1
        await trio.sleep(0 if answer else 0.1)


def format_siege(siege: Siege) -> str:
    """A line an attack."""
    lines = [f"seed {siege.seed}, {siege.resident_mb:.0f} MB before"]
    for wave in siege.waves:
        statuses = " ".join(f"{status}: {count}," for status, count in wave.statuses.items()).rstrip(",")
        lines.append(
            f"{wave.name:<12} {wave.sent:>6} in {wave.seconds:5.1f} s  {statuses:<24} {wave.resident_mb:6.0f} MB  others: "
            f"{wave.innocent} answered, {wave.innocent_wrong} wrong, {wave.innocent_refused} refused"
        )
        lines += [f"  WRONG: {what} ({count} times)" for what, count in list(wave.wrong.items())[:WRONG_SHOWN]]
        if wave.held:
            lines.append("  HELD: " + ", ".join(f"{name} {value:g}" for name, value in wave.held.items()))
    lines.append("repelled" if siege.repelled else f"not repelled (the server ended with {siege.exit_code})")
    return "\n".join(lines)
