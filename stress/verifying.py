"""Verifying: one run's folder from transcripts to `verdicts.json`.

transcripts/*.jsonl   what clients heard, written by who loads
judged.jsonl          the ledger, an opinion a response
repros/<id>.json      wrong responses as schedules
verdicts.json         the sum, written at the end
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
import msgspec

from fuzz.conductor import run_trio
from fuzz.repro import write_atomically
from stress.judging.following import Following, Response, decoded
from stress.judging.ledger import Ledger
from stress.judging.opinion import Opinion, Standing
from stress.judging.panel import BUNDLE, Panel, unjudged
from stress.judging.verdicts import Verdicts, format_verdicts, summed
from stress.recording.account import read_lives
from stress.recording.repros import Found, Reproducer
from stress.transcript import Exchange
from targets.protocol import Factory, Setting
from targets.registry import TargetSpec

SUSPECTS_MAX = 50
"""So many suspects are decided by experiment; more stay undecided."""
LOOK_S = 0.2
"""Between two looks at transcripts that do not grow."""


@dataclass(frozen=True)
class Verifying:
    """What is judged, and by whom.

    Attributes:
        follow: Whether transcripts still grow. It ends when a signal says so, or nothing has come for `quiet_s`.
        account: The served target's own account, where there is one.
        foreign: Whether something else than `slotfuzz serve` was asked, which may draw other noise when it samples.
        repros_max: So many bugs are made repros of.
    """

    folder: Path
    spec: TargetSpec
    factory: Factory
    settings: dict[str, Setting]
    workers: int
    follow: bool
    quiet_s: float
    account: Path | None
    foreign: bool
    repros_max: int


def verify(asked: Verifying) -> Verdicts:
    """Judges everything, writes `verdicts.json`, and says what is in it.

    Raises:
        BadInput: where the folder is none, or the reference can't be built.
    """
    started = time.monotonic()
    by = _by(asked)
    click.echo(f"judging {asked.folder} by {by}")
    with Ledger(asked.folder / "judged.jsonl", by) as ledger:
        following = Following(asked.folder, frozenset(ledger.opinions))
        with _until_signal() as over:
            _judge_all(asked, following, ledger, over)
        suspects = sum(opinion.standing is Standing.SUSPECT for opinion in ledger.opinions.values())
        found = _looked_into(asked, following, ledger)
        verdicts = summed(
            ledger.opinions.values(),
            in_flight=len(following.open),
            by=by,
            seconds=time.monotonic() - started,
            unreadable=following.unreadable,
            suspects=suspects,
            refuted=len(found.refuted),
            repros=found.stored,
            not_reproduced=found.said,
        )
    write_atomically(asked.folder / "verdicts.json", msgspec.json.format(msgspec.json.encode(verdicts), indent=1))
    click.echo(format_verdicts(verdicts))
    return verdicts


def _by(asked: Verifying) -> str:
    """The judge's name: what its opinions depend on."""
    settings = " ".join(f"{name}={value}" for name, value in sorted(asked.settings.items()))
    return " ".join(filter(None, (asked.factory.identity, settings, "foreign" if asked.foreign else "")))


def _judge_all(asked: Verifying, following: Following, ledger: Ledger, over: Over) -> None:
    """Hands out what there is until there is no more, and writes down what comes back."""
    panel = Panel(asked.spec, asked.settings, asked.workers, nice=asked.follow, foreign=asked.foreign)
    quiet_since = time.monotonic()
    try:
        while True:
            bundles = _bundles(following)
            while not panel.full and (bundle := next(bundles, None)):
                panel.hand_in(bundle)
                quiet_since = time.monotonic()
            if panel.waiting:
                ledger.add(panel.heard(LOOK_S))
            elif not asked.follow or over.told or time.monotonic() - quiet_since > asked.quiet_s:
                if not (last := list(_bundles(following))):
                    return
                for bundle in last:
                    panel.hand_in(bundle)
            else:
                time.sleep(LOOK_S)
            if over.twice:
                ledger.add(
                    unjudged(response, "it was told to stop") for bundle in _bundles(following) for response in bundle
                )
                return
    finally:
        panel.close()


def _looked_into(asked: Verifying, following: Following, ledger: Ledger) -> Found:
    """Experiments: suspects are decided, wrong and lost responses are made repros of, and the ledger is told."""
    opinions = list(ledger.opinions.values())
    if all(opinion.standing in (Standing.RIGHT, Standing.UNJUDGED) for opinion in opinions) and not following.open:
        return Found()
    if not asked.repros_max:
        return Found()
    heard = heard_by_name(following)
    lives = None if asked.account is None else list(read_lives(asked.account))
    reproducer = Reproducer(asked.spec, asked.factory, asked.settings, asked.folder, heard, lives)
    found = run_trio(_look_into, reproducer, opinions, following, asked.repros_max)
    ledger.add(changed for opinion in opinions if (changed := _decided(opinion, found)) != opinion)
    return found


async def _look_into(reproducer: Reproducer, opinions: list[Opinion], following: Following, repros_max: int) -> Found:
    """Suspects first: what they are decides what is wrong."""
    sent = {name: exchange.sent_s for name, exchange in reproducer.heard.items()}
    opinions = sorted(opinions, key=lambda opinion: sent[opinion.name])
    for opinion in [each for each in opinions if each.standing is Standing.SUSPECT][:SUSPECTS_MAX]:
        await reproducer.decide(opinion)
    silent = [
        Opinion(source=source, number=number, outcome="begun", standing=Standing.LOST) for source, number in following.open
    ]
    wrong = [each for each in opinions if _decided(each, reproducer.found).standing is Standing.WRONG]
    lost = [each for each in (*opinions, *silent) if each.standing is Standing.LOST]
    return await reproducer.run([*wrong, *lost], repros_max)


def _decided(opinion: Opinion, found: Found) -> Opinion:
    """The opinion after the experiments."""
    kind = found.kinds.get(opinion.name)
    if opinion.name in found.refuted and opinion.standing is Standing.SUSPECT:
        return msgspec.structs.replace(opinion, standing=Standing.RIGHT, complaints=())
    if kind is None or opinion.standing is Standing.LOST:
        return opinion
    first, *more = opinion.complaints
    named = first if first.kind is not None else msgspec.structs.replace(first, kind=kind)
    return msgspec.structs.replace(opinion, standing=Standing.WRONG, complaints=(named, *more))


def heard_by_name(following: Following) -> dict[tuple[str, int], Exchange]:
    """All that was heard, by the request's name; of what nothing was heard, that it was asked."""
    found = {(response.source, response.number): decoded(response.raw).exchange for response in following.again()}
    for name, begun in following.open.items():
        found[name] = Exchange(
            number=begun.number,
            user=begun.user,
            request=begun.request,
            sent_s=begun.sent_s,
            ended_s=max(following.last_s, begun.sent_s),
            outcome="cut",
        )
    return found


def _bundles(following: Following) -> Iterator[list[Response]]:
    bundle: list[Response] = []
    for response in following.read():
        bundle.append(response)
        if len(bundle) == BUNDLE:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


class Over:
    """Whether a signal has come: the first says that the load is over, the second that the judging is."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.count += 1

    @property
    def told(self) -> bool:
        """At least once."""
        return self.count > 0

    @property
    def twice(self) -> bool:
        """At least twice."""
        return self.count > 1


@contextmanager
def _until_signal() -> Iterator[Over]:
    """Counts SIGINT and SIGTERM while it is entered."""
    over = Over()
    before = {number: signal.signal(number, over.tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
