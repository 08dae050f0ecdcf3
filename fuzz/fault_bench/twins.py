"""Twins: schedules on a fault's honest twin, which goes the same way and does the right thing. What is found is an alarm."""

from __future__ import annotations

import msgspec

from fuzz.conductor import run_trio
from fuzz.fault_bench.attempts import planted, settings_of
from fuzz.search import Limits, Search
from targets.faults import FAULTS, Probe


class TwinTask(msgspec.Struct, frozen=True, kw_only=True, tag="twin"):
    """So many schedules on the twin of one fault."""

    fault: str
    schedules: int
    seed: int = 0


class Twin(msgspec.Struct, frozen=True, kw_only=True, tag="twin"):
    """What they came to.

    Attributes:
        judged: Schedules.
        reached: How often the twin's own code ran; a twin that was never there says nothing.
        changed: How often it made a difference: none, or it is no twin.
        suspects, refuted: As in a report.
        alarms: Signatures of what was found, and all that could not be decided.
    """

    task: TwinTask
    judged: int
    judged_s: float
    reached: int
    changed: int
    suspects: int
    refuted: int
    alarms: tuple[str, ...]


def play_twin(task: TwinTask) -> Twin:
    """Does what the task says."""
    fault, probe = FAULTS[task.fault], Probe(honest=True)
    search = Search(planted(fault, probe), task.seed, Limits(schedules=task.schedules), settings_of(fault))
    tally = run_trio(search.run)
    undecided = (*tally.unknown, *tally.unstable, *tally.crashed_checks)
    return Twin(
        task=task,
        judged=tally.schedules,
        judged_s=tally.seconds,
        reached=probe.reached,
        changed=probe.changed,
        suspects=tally.report.suspects,
        refuted=tally.report.refuted,
        alarms=(*(failure.signature for failure in tally.failures), *undecided),
    )
