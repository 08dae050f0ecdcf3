"""Exchanges: two requests exchange one field of their state, mid-run. Whatever is found convicts: no kind is asked for."""

from __future__ import annotations

import msgspec

from fuzz.conductor import run_trio
from fuzz.fault_bench.attempts import Noting, stage_of
from fuzz.search import Limits
from targets.decoder import DecoderFactory
from targets.faults.bank import Probe
from targets.faults.generated import FIELDS, Field
from targets.models import find_model


class ExchangeTask(msgspec.Struct, frozen=True, kw_only=True, tag="exchange"):
    """At most so many schedules on a decoder in which requests exchange this field."""

    field: str
    schedules: int
    seed: int = 0


class Exchanged(msgspec.Struct, frozen=True, kw_only=True, tag="exchange"):
    """What came of it.

    Attributes:
        changed: How often an exchange made a difference, in all replays.
        found: Schedules until something was found; None if nothing was.
        kind, check: What was found first.
        shareable: Why requests may share the field; empty if they must not.
    """

    task: ExchangeTask
    judged: int
    judged_s: float
    changed: int
    found: int | None
    kind: str
    check: str
    shareable: str

    @property
    def is_right(self) -> bool:
        """Whether it was found, or, where it may be shared, changed something that nobody could see."""
        return self.found is None and self.changed > 0 if self.shareable else self.found is not None


def find_field(name: str) -> Field:
    """A field by its name."""
    return next(field for field in FIELDS if field.name == name)


def play_exchange(task: ExchangeTask, honest: bool = False) -> Exchanged:
    """Does what the task says; honestly, where requests are only looked at and exchange nothing."""
    field, probe = find_field(task.field), Probe(honest)
    factory = DecoderFactory(find_model(field.model), field.plant(probe), field.target)
    search = Noting(factory, task.seed, Limits(schedules=task.schedules), dict(field.settings), stage=stage_of(factory))
    search.enough = lambda _: True
    tally = run_trio(search.run)
    failure = tally.failures[0] if tally.failures else None
    return Exchanged(
        task=task,
        judged=tally.schedules,
        judged_s=tally.seconds,
        changed=probe.changed,
        found=None if failure is None else failure.found_after,
        kind="" if failure is None else failure.finding.kind,
        check="" if failure is None else failure.finding.check,
        shareable=field.shareable,
    )
