"""Figures: what the results of a bench come to. Pure functions of the results.

A trial that found nothing is *censored*: all that is known is that it would have taken longer. Schedules to detection are
therefore estimated as schedules judged, over all trials, for each detection: the maximum of the likelihood where every
schedule has the same chance, censored trials included. Where nothing was found that is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from fuzz.fault_bench.attempts import Trial
from fuzz.fault_bench.ways import OURS
from targets.faults import FAULTS

BUCKETS_S = (0.1, 1.0, 10.0, 60.0)
HARD = 20.0
"""Schedules from which on a fault is hard for the uniform way."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, one way.

    Attributes:
        detected: Trials with a rightful failure.
        reached, triggered: Trials in which the changed code ran, and in which it made a difference.
        per_detection: Schedules judged for each detection; a lower bound if there was none.
        schedules, seconds: Of the trials that detected it, sorted.
        right: Trials all of whose failures had a rightful kind.
        wrong: Trials with a failure that the fault does not declare.
        checks: Those that convicted.
        evaluations: Of each shrink, sorted.
        near, minimal: Shrinks within one request and two tokens of the smallest known; shrinks that are 1-minimal.
    """

    fault: str
    group: str
    way: str
    trials: int
    detected: int
    reached: int
    triggered: int
    per_detection: float
    schedules: tuple[int, ...]
    seconds: tuple[float, ...]
    right: int
    wrong: int
    checks: tuple[str, ...]
    evaluations: tuple[int, ...]
    shrink_s: tuple[float, ...]
    near: int
    minimal: int

    @property
    def is_solved(self) -> bool:
        """Whether every trial detected it."""
        return self.detected == self.trials


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """One way, over all faults that it was tried on.

    Attributes:
        solved, found, never: Faults detected in every trial, in any, in none.
        buckets: Trials that detected theirs within each of `BUCKETS_S`, not counting those of a bucket before.
        seconds_median: Of all trials, the censored ones as the longest; None where most are censored.
        seconds_worst: Over all trials of the solved faults.
        evaluations_median, evaluations_worst: Of all shrinks.
    """

    way: str
    faults: int
    trials: int
    detected: int
    solved: int
    found: int
    never: tuple[str, ...]
    buckets: tuple[int, ...]
    seconds_median: float | None
    seconds_worst: float | None
    right: int
    near: int
    minimal: int
    evaluations_median: float
    evaluations_worst: int


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Ours beside another way, on the faults that both were tried on.

    Attributes:
        fewer: How many times fewer schedules to a detection ours takes, as a geometric mean over those faults on which the
            other takes `HARD` or more; None where there are none.
        hard: How many these are.
        bounds: Of these, how many the other way never found, so that the mean is a lower bound.
        lost: Of these, those that ours never found: they are in the mean with the schedules it judged, which flatters it.
        only_ours: Faults that the other way never found and ours did.
        only_theirs: The reverse.
    """

    way: str
    fewer: float | None
    hard: int
    bounds: int
    lost: tuple[str, ...]
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]


def line(trials: Sequence[Trial]) -> Line:
    """The trials of one fault by one way."""
    found = [trial for trial in trials if trial.found is not None]
    followed = [trial for trial in found if trial.task.way == OURS]
    first = trials[0].task
    return Line(
        fault=first.fault,
        group=FAULTS[first.fault].group,
        way=first.way,
        trials=len(trials),
        detected=len(found),
        reached=sum(trial.reached is not None for trial in trials),
        triggered=sum(trial.triggered is not None for trial in trials),
        per_detection=sum(trial.found or trial.judged for trial in trials) / max(1, len(found)),
        schedules=tuple(sorted(trial.found or 0 for trial in found)),
        seconds=tuple(sorted(trial.found_s or 0.0 for trial in found)),
        right=sum(trial.right_first and trial.right for trial in found),
        wrong=sum(bool(trial.wrong) for trial in trials),
        checks=tuple(sorted({trial.check for trial in found})),
        evaluations=tuple(sorted(trial.evaluations for trial in followed)),
        shrink_s=tuple(sorted(trial.shrink_s for trial in followed)),
        near=sum(trial.is_near for trial in followed),
        minimal=sum(trial.minimal for trial in followed),
    )


def lines(trials: Iterable[Trial]) -> list[Line]:
    """One for each fault and way, in the order of the bank."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.task.way, trial.task.fault), []).append(trial)
    order = list(FAULTS)
    return [line(groups[key]) for key in sorted(groups, key=lambda key: (key[0] != OURS, key[0], order.index(key[1])))]


def whole(of_one_way: Sequence[Line]) -> Whole:
    """All faults by one way."""
    seconds = [second for each in of_one_way for second in each.seconds]
    trials = sum(each.trials for each in of_one_way)
    censored = [math.inf] * (trials - len(seconds))
    middle = median([*seconds, *censored])
    evaluations = [count for each in of_one_way for count in each.evaluations]
    edges = (0.0, *BUCKETS_S)
    return Whole(
        way=of_one_way[0].way,
        faults=len(of_one_way),
        trials=trials,
        detected=len(seconds),
        solved=sum(each.is_solved for each in of_one_way),
        found=sum(each.detected > 0 for each in of_one_way),
        never=tuple(each.fault for each in of_one_way if not each.detected),
        buckets=tuple(sum(low <= second < high for second in seconds) for low, high in zip(edges, BUCKETS_S, strict=False)),
        seconds_median=None if middle == math.inf else middle,
        seconds_worst=max((each.seconds[-1] for each in of_one_way if each.is_solved), default=None),
        right=sum(each.right for each in of_one_way),
        near=sum(each.near for each in of_one_way),
        minimal=sum(each.minimal for each in of_one_way),
        evaluations_median=median(evaluations) if evaluations else 0.0,
        evaluations_worst=max(evaluations, default=0),
    )


def wholes(all_lines: Sequence[Line]) -> list[Whole]:
    """One for each way."""
    ways = dict.fromkeys(each.way for each in all_lines)
    return [whole([each for each in all_lines if each.way == way]) for way in ways]


def against(all_lines: Sequence[Line]) -> list[Against]:
    """Ours beside each other way; none without trials of ours."""
    ours = {each.fault: each for each in all_lines if each.way == OURS}
    found = []
    for way in dict.fromkeys(each.way for each in all_lines if each.way != OURS):
        theirs = [each for each in all_lines if each.way == way and each.fault in ours]
        hard = [each for each in theirs if each.per_detection >= HARD]
        ratios = [math.log(each.per_detection / ours[each.fault].per_detection) for each in hard]
        if theirs:
            found.append(
                Against(
                    way=way,
                    fewer=math.exp(sum(ratios) / len(ratios)) if ratios else None,
                    hard=len(hard),
                    bounds=sum(not each.detected for each in hard),
                    lost=tuple(each.fault for each in hard if not ours[each.fault].detected),
                    only_ours=tuple(each.fault for each in theirs if not each.detected and ours[each.fault].detected),
                    only_theirs=tuple(each.fault for each in theirs if each.detected and not ours[each.fault].detected),
                )
            )
    return found
