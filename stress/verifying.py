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
from pathlib import Path
from types import FrameType

import click
import msgspec

from fuzz.repro import write_atomically
from stress.examining import examine
from stress.judging.asked import Verifying
from stress.judging.following import Following, Response
from stress.judging.ledger import Ledger
from stress.judging.opinion import Opinion, Standing
from stress.judging.panel import BUNDLE, Alone, Judges, Panel, judge_of, unjudged
from stress.judging.verdicts import Verdicts, format_verdicts, summed
from stress.recording.repros import Found
from targets.protocol import BadInput

LOOK_S = 0.2
"""Between two looks at transcripts that do not grow."""


def verify(asked: Verifying) -> Verdicts:
    """Judges everything, writes `verdicts.json`, and says what is in it.

    Raises:
        BadInput: where the folder is none, or the reference can't be built.
    """
    started = time.monotonic()
    by = _by(asked)
    if asked.account is not None and not asked.account.is_file():
        raise BadInput("--record", "a file that can be read", asked.account)
    following = Following(asked.folder)
    with Ledger(asked.folder / "judged.jsonl", by) as ledger:
        following.done = frozenset(ledger.opinions)
        with until_signal(asked.follow) as over:
            click.echo(f"judging {asked.folder} by {by}")
            left = _judge_all(asked, following, ledger, over)
        suspects = sum(opinion.standing is Standing.SUSPECT for opinion in ledger.opinions.values())
        found = Found()
        if asked.repros_max and not left:
            _examine(asked, following, ledger, found)
        verdicts = summed(
            [*ledger.opinions.values(), *left],
            in_flight=len(following.open),
            by=by,
            seconds=time.monotonic() - started,
            unreadable=following.unreadable,
            suspects=suspects,
            refuted=len(found.refuted),
            repros=found.stored,
            schedules=found.schedules,
            not_reproduced=found.said,
        )
    return concluded(asked.folder, verdicts)


def _examine(asked: Verifying, following: Following, ledger: Ledger, found: Found) -> None:
    """Lets experiments say more of what is not right, until a signal says that they should not."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        examine(asked, following, ledger, found)
    except* KeyboardInterrupt:
        found.said.append("the experiments were told to stop")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def concluded(folder: Path, verdicts: Verdicts) -> Verdicts:
    """Writes the sum down and says what is in it."""
    write_atomically(folder / "verdicts.json", msgspec.json.format(msgspec.json.encode(verdicts), indent=1))
    click.echo(format_verdicts(verdicts))
    return verdicts


def _by(asked: Verifying) -> str:
    """The judge's name: what its opinions depend on."""
    settings = " ".join(f"{name}={value}" for name, value in sorted(asked.settings.items()))
    return " ".join(filter(None, (asked.factory.identity, settings, "foreign" if asked.foreign else "")))


def _judge_all(asked: Verifying, following: Following, ledger: Ledger, over: Over) -> list[Opinion]:
    """Hands out what there is until there is no more, and writes down what comes back; returns what is left, unjudged."""
    panel = _judges(asked)
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
                    return []
                for bundle in last:
                    panel.hand_in(bundle)
            else:
                time.sleep(LOOK_S)
            if over.judging:
                left = [*panel.left(), *(response for bundle in _bundles(following) for response in bundle)]
                return [unjudged(response, "the judging was told to stop") for response in left]
    finally:
        panel.close()


def _judges(asked: Verifying) -> Judges:
    if asked.workers:
        return Panel(asked.spec, asked.settings, asked.workers, nice=asked.follow, foreign=asked.foreign)
    return Alone(judge_of(asked.spec, asked.factory, asked.settings, asked.foreign))


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
    """Whether a signal has come: the first says that the load is over, the next one that the judging is.

    Args:
        loaded: Whether there is a load that may be over; else the first says that the judging is.
    """

    def __init__(self, loaded: bool) -> None:
        self.count = 0 if loaded else 1

    def tell(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.count += 1

    @property
    def told(self) -> bool:
        """Whether the load is over."""
        return self.count > 0

    @property
    def judging(self) -> bool:
        """Whether the judging is over too."""
        return self.count > 1


@contextmanager
def until_signal(loaded: bool) -> Iterator[Over]:
    """Counts SIGINT and SIGTERM while it is entered, as `Over` does."""
    over = Over(loaded)
    before = {number: signal.signal(number, over.tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
