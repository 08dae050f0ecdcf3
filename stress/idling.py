"""Idling: one run's folder judged by the endpoint's own answers, where there is no model to ask.

As `stress.verifying`, and beside that it keeps `idle.jsonl`, or the file that is named: what each request is answered alone.
Nothing is asked before the load is over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import trio

from stress.judging.asking import Endpoint, endpoint
from stress.judging.following import Following, decoded
from stress.judging.idle import Answers, is_rounding, judge
from stress.judging.ledger import Ledger
from stress.judging.opinion import Opinion, Standing
from stress.judging.verdicts import Verdicts, summed
from stress.transcript import Exchange
from stress.verifying import LOOK_S, Over, concluded, until_signal
from stress.wording import Dialect


@dataclass(frozen=True)
class Idling:
    """What is judged, and who is asked.

    Attributes:
        url: Of the endpoint.
        answers: The file of idle answers.
        dialect: Which fields the endpoint is asked with; None for what its list of models says.
        follow, quiet_s: As in `stress.verifying.Verifying`.
    """

    folder: Path
    url: str
    answers: Path
    api_key: str | None
    dialect: Dialect | None
    follow: bool
    quiet_s: float


def verify_idle(asked: Idling) -> Verdicts:
    """Waits until the load is over, asks everything again, judges, writes `verdicts.json`, and says what is in it.

    Raises:
        BadInput: where the folder is none, or nobody answers at the URL.
    """
    started = time.monotonic()
    following = Following(asked.folder)
    by = f"its own answers when idle, {asked.url}"
    with until_signal(asked.follow) as over:
        click.echo(f"judging {asked.folder} by {by}")
        if asked.follow:
            _wait(following, over, asked.quiet_s)
        heard = [(each.source, decoded(each.raw).exchange) for each in following.again()]
        list(following.read())
        with Ledger(asked.folder / "judged.jsonl", f"{by} {started}") as ledger:
            trio.run(_judge_all, asked, heard, ledger, over)
            doubted = sum(_is_doubted(opinion) for opinion in ledger.opinions.values())
            return concluded(
                asked.folder,
                summed(
                    ledger.opinions.values(),
                    in_flight=len(following.open),
                    by=by,
                    seconds=time.monotonic() - started,
                    unreadable=following.unreadable,
                    suspects=doubted,
                    refuted=sum(_is_doubted(each) and each.standing is Standing.RIGHT for each in ledger.opinions.values()),
                ),
            )


def _wait(following: Following, over: Over, quiet_s: float) -> None:
    """Until the load is over."""
    quiet_since = time.monotonic()
    while not over.told and time.monotonic() - quiet_since < quiet_s:
        if any(True for _ in following.read()):
            quiet_since = time.monotonic()
        time.sleep(LOOK_S)


async def _judge_all(asked: Idling, heard: list[tuple[str, Exchange]], ledger: Ledger, over: Over) -> None:
    """Asks every request again, then judges; a suspect gets its experiment at once. Told to stop, it asks nothing more."""
    answers = Answers(asked.answers)
    async with endpoint(asked.url, asked.api_key, asked.dialect) as served:
        await answers.ask(served, [each.question for _, each in heard if each.pieces], lambda: over.judging)
        for source, exchange in heard:
            known = answers.of(exchange.question)
            opinion = judge(source, exchange, known)
            if opinion.standing is Standing.SUSPECT and not over.judging:
                opinion = await _decided(served, opinion, exchange, answers)
            ledger.add([opinion])


async def _decided(served: Endpoint, opinion: Opinion, exchange: Exchange, answers: Answers) -> Opinion:
    """A suspect after the experiment."""
    rounding = await is_rounding(served, exchange, answers.of(exchange.question)[0])
    standing = Standing.RIGHT if rounding else Standing.WRONG
    why = (
        "beside copies of itself it departs as well: rounding" if rounding else "beside copies of itself it does not depart"
    )
    return msgspec.structs.replace(opinion, standing=standing, why=why)


def _is_doubted(opinion: Opinion) -> bool:
    """Whether it was a suspect."""
    return bool(opinion.complaints) and opinion.why.startswith("beside copies")
