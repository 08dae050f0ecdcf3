"""Tallies: what shards have done, as data, and several of them as one `Tally`: the only way in which results are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from fuzz.coverage import Coverage
from fuzz.feasible import SIZES
from fuzz.forwards import Fill, Forwards
from fuzz.judge import Judge
from fuzz.lifecycle import Gram
from fuzz.search import Tally
from oracle.finding import Report
from targets.protocol import LifeCycle

_SENTENCES_MAX = 100


class Sight(msgspec.Struct, forbid_unknown_fields=True):
    """How often a shard saw a signature, and when last: seconds since 1970."""

    times: int = 0
    last_s: float = 0.0


class Shard(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What one shard has done so far.

    Attributes:
        number: It is the campaign's seed plus this that its schedules are drawn from.
        target_s, reference_s: Seconds in forwards.
        sees_forwards: Whether the target's network is within reach of the meters.
        fill: Of the target's forwards.
        seen: In how many schedules each gram was seen, by size.
        sights: Signatures that it saw.
        counts: Those of `Report`, without findings.
    """

    number: int
    schedules: int = 0
    failing: int = 0
    tokens_checked: int = 0
    seconds: float = 0.0
    target_s: float = 0.0
    reference_s: float = 0.0
    sees_forwards: bool = False
    fill: Fill = msgspec.field(default_factory=Fill)
    mechanisms: dict[str, int] = {}
    seen: dict[int, dict[Gram, int]] = {}
    counts: Report = msgspec.field(default_factory=Report)
    unknown: list[str] = []
    unstable: list[str] = []
    crashed_checks: list[str] = []
    sights: dict[str, Sight] = {}


def shard_of(number: int, tally: Tally, judge: Judge, sights: dict[str, Sight]) -> Shard:
    """A search's tally as data."""
    forwards = judge.forwards()
    return Shard(
        number=number,
        schedules=tally.schedules,
        failing=tally.failing,
        tokens_checked=tally.tokens_checked,
        seconds=tally.seconds,
        target_s=forwards.target_s,
        reference_s=forwards.reference_s,
        sees_forwards=forwards.seen,
        fill=forwards.fill,
        mechanisms=dict(tally.mechanisms),
        seen={size: dict(counter) for size, counter in tally.coverage.seen.items()},
        counts=msgspec.structs.replace(tally.report, findings=[], unknown=[], unstable=[]),
        unknown=tally.unknown[:_SENTENCES_MAX],
        unstable=tally.unstable[:_SENTENCES_MAX],
        crashed_checks=tally.crashed_checks[:_SENTENCES_MAX],
        sights=sights,
    )


class Merged(msgspec.Struct, frozen=True):
    """Several shards as one.

    Attributes:
        tally: Without failures: those are repros by now. Its seconds are the workers', added up.
        wall_s: Seconds that went by meanwhile.
    """

    tally: Tally
    forwards: Forwards
    sights: dict[str, Sight]
    wall_s: float = 0.0

    def by_the_clock(self) -> Tally:
        """The tally with the seconds that went by, for speeds."""
        return replace(self.tally, seconds=self.wall_s)

    @property
    def share_outside(self) -> float | None:
        """The share of the workers' time that was not spent in forwards; None where they are out of reach."""
        return self.forwards.share_outside(self.tally.seconds)


def merge(shards: Iterable[Shard], cycles: tuple[LifeCycle, ...] | None, sanitized: bool) -> Merged:
    """Shards as one tally."""
    read = list(shards)
    tally = Tally(sanitized=sanitized, coverage=Coverage(cycles))
    sights: dict[str, Sight] = {}
    fill = Fill()
    for shard in read:
        fill.add(shard.fill)
        tally.schedules += shard.schedules
        tally.failing += shard.failing
        tally.tokens_checked += shard.tokens_checked
        tally.seconds += shard.seconds
        tally.mechanisms.update(shard.mechanisms)
        tally.report.add(shard.counts)
        tally.unknown += shard.unknown
        tally.unstable += shard.unstable
        tally.crashed_checks += shard.crashed_checks
        tally.coverage.schedules += shard.schedules
        for size in SIZES:
            tally.coverage.seen[size].update(Counter(shard.seen.get(size, {})))
        for signature, sight in shard.sights.items():
            known = sights.setdefault(signature, Sight())
            known.times += sight.times
            known.last_s = max(known.last_s, sight.last_s)
    return Merged(
        tally=tally,
        forwards=Forwards(
            target_s=sum(shard.target_s for shard in read),
            reference_s=sum(shard.reference_s for shard in read),
            seen=any(shard.sees_forwards for shard in read),
            fill=fill,
        ),
        sights=sights,
    )
