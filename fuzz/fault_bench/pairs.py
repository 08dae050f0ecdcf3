"""Pairs: two bugs at once. Each failure should have one cause, and each cause a failure.

Whose failure one is is found out by experiment: its minimal schedule is judged with either bug planted alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection

import msgspec

from fuzz.conductor import run_trio
from fuzz.fault_bench.attempts import settings_of, stage_of
from fuzz.judge import Judge
from fuzz.search import Limits, Search
from fuzz.stage import Renewing
from targets.decoder import DecoderFactory
from targets.faults import FAULTS, planted
from targets.models import find_model
from targets.protocol import CheckName, Kind, Schedule

FIRST, SECOND, EITHER, TOGETHER = "first", "second", "either", "together"


class PairTask(msgspec.Struct, frozen=True, kw_only=True, tag="pair"):
    """Two faults in one decoder, for so many schedules."""

    first: str
    second: str
    schedules: int
    seed: int = 0


class Pair(msgspec.Struct, frozen=True, kw_only=True, tag="pair"):
    """What was found.

    Attributes:
        signatures: Each failure's signature, and whose it is: "first" or "second" (with that bug alone the minimal schedule
            fails in the same way), "either", or "together" (with neither).
    """

    task: PairTask
    judged: int
    judged_s: float
    signatures: tuple[tuple[str, str], ...]

    @property
    def both_found(self) -> bool:
        """Whether each bug has a failure."""
        causes = {cause for _, cause in self.signatures}
        return {FIRST, SECOND} <= causes or (EITHER in causes and bool({FIRST, SECOND} & causes))

    @property
    def pure(self) -> int:
        """Failures with one cause."""
        return sum(cause in (FIRST, SECOND) for _, cause in self.signatures)


def compatible(names: Collection[str], count: int, seed: int) -> list[tuple[str, str]]:
    """`count` pairs of faults that can stand in one decoder: a target and a model in common, settings that agree.

    They are drawn evenly. Two of one class are no pair: they are variants of one bug, and may well have one signature.
    """
    pairs = []
    for first, second in itertools.combinations(sorted(names), 2):
        one, other = FAULTS[first], FAULTS[second]
        agree = all(other.settings.get(name, value) == value for name, value in one.settings.items())
        if agree and one.group != other.group and one.targets[0] in other.targets and one.models[0] in other.models:
            pairs.append((first, second))
    random.Random(seed).shuffle(pairs)
    return sorted(pairs[:count])


def play_pair(task: PairTask) -> Pair:
    """Does what the task says."""
    both = FAULTS[task.first], FAULTS[task.second]
    settings = {**settings_of(both[0]), **settings_of(both[1])}
    factory = _factory(task.first, task.second)
    search = Search(factory, task.seed, Limits(schedules=task.schedules), settings, stage=stage_of(factory))
    tally = run_trio(search.run)
    alone = [_factory(name, model=both[0].models[0], target=both[0].targets[0]) for name in (task.first, task.second)]
    signatures = []
    for failure in tally.failures:
        kind, check = failure.finding.kind, failure.finding.check
        causes = [_shows(each, failure.schedule, kind, check) for each in alone]
        cause = EITHER if all(causes) else FIRST if causes[0] else SECOND if causes[1] else TOGETHER
        signatures.append((failure.signature, cause))
    return Pair(task=task, judged=tally.schedules, judged_s=tally.seconds, signatures=tuple(signatures))


def _factory(*names: str, model: str = "", target: str = "") -> DecoderFactory:
    """Targets with these faults, on the first one's target and model unless told otherwise."""
    faults = [FAULTS[name] for name in names]
    target = target or faults[0].targets[0]
    return DecoderFactory(find_model(model or faults[0].models[0]), planted(faults, target), target)


def _shows(factory: DecoderFactory, schedule: Schedule, kind: Kind, check: CheckName) -> bool:
    judge = Judge(factory, Renewing(stage_of(factory)))
    return run_trio(judge.same, schedule, kind, check) is not None
