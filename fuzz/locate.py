"""Locate: replays a failure under the probe and hands the judge what it takes to say where the failure began.

One replay of the schedule, one cacheless forward of the network for each request. In float64 with the same weights and
tokens where the target has that, so that rounding is out of the way. Never raises for what a target or a network does:
where it can't be told, the reason is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import torch

from fuzz.conductor import play
from fuzz.watch import BEGINS_BEHIND, MORE_CELLS, StepCells, Watch
from fuzz.watching import Watching
from oracle.finding import Finding
from oracle.kinds import in_float64
from oracle.reference import Reference
from oracle.where import Departure, Part, Where, account_site
from targets.protocol import (
    Cells,
    Factory,
    Inspectable,
    Kind,
    Request,
    Schedule,
    Setting,
    Trace,
    emitted_by_submission,
    submissions,
    with_requests,
)

References = Callable[[Mapping[str, Setting]], Reference]
ATTENDED = (Kind.LEAK, Kind.STALE_HIT, Kind.INTERFERENCE, Kind.WRONG_ALONE, Kind.NONFINITE)
"""Kinds that show in logits, and so in an attention or behind it."""
_CELLS_LOOKED_AT = 3
_STEPS_MAX = 12


@dataclass
class Located:
    """What came of it: `where`, or None and `why`. `steps` has the victim's cells, step by step, up to the departure."""

    where: Where | None = None
    why: str = ""
    steps: list[StepCells] = field(default_factory=list)


async def locate(
    factory: Factory, references: References, schedule: Schedule, finding: Finding, trace: Trace = ()
) -> Located:
    """Where a failure began, for a schedule that shows it.

    Replays only for kinds that show in an attention or a slot: never what crashed or hung.

    Args:
        references: The reference in the precision of some settings, as `Judge.reference`.
        trace: What happened; says what a stalled request was waiting for, and saves a replay.
    """
    located = Located(why="the finding names no request")
    if finding.submission is not None and finding.kind in (*ATTENDED, Kind.OWNERSHIP):
        try:
            located = await _locate(factory, references, schedule, finding.submission, trace)
        except Exception as error:  # a target's or a network's own oddity: no reason to lose the finding
            located = Located(why=f"looking for it raised {type(error).__name__}: {error}")
    if finding.kind in ATTENDED:
        return located
    where = located.where
    if where is not None and where.part is Part.LENGTH:  # a complaint about cells: the row says how it came about
        return Located(msgspec.structs.replace(where, site=f"slots: {where.site}"), steps=located.steps)
    site = account_site(finding, trace)
    return Located(Where(site=site, part=Part.ACCOUNT, what=finding.what, submission=finding.submission))


async def watched(
    factory: Factory, references: References, schedule: Schedule, victim: int, to_the_end: bool, trace: Trace = ()
) -> Watch:
    """Replays a schedule and watches one request's attention, to its first departure or to the end.

    Args:
        trace: What happened, for the tokens that each request was given; without it, the schedule is replayed for them.
    """
    plain = trace or await play(factory, schedule, audits=False)
    answers = {who: tuple(event.token for event in events) for who, events in emitted_by_submission(plain).items()}
    exact = _exact(factory, references, schedule, answers)
    reference = references(exact.settings)
    watch = Watch(victim, submissions(exact), answers, reference, factory.vocabulary, to_the_end)
    await play(Watching(factory, watch), exact, audits=False)
    return watch


async def _locate(factory: Factory, references: References, schedule: Schedule, victim: int, trace: Trace) -> Located:
    watch = await watched(factory, references, schedule, victim, to_the_end=False, trace=trace)
    found = watch.found
    if found is None:
        return Located(why=watch.why or "nothing departs beyond rounding", steps=watch.steps)
    told = found.part in (Part.LENGTH, Part.KEYS, Part.VALUES)
    shared = shares_cells(factory, schedule.settings) if told else None
    site = found.cause
    if shared:
        whoever = shares_cells(factory, schedule.settings, alike=False)
        who = "requests share" if whoever else "requests that begin alike share"
        site = f"{MORE_CELLS if site == BEGINS_BEHIND else site}, in storage that {who}"
    where = Where(
        site=site,
        part=found.part,
        what=_sentence(victim, found, watch),
        submission=victim,
        step=watch.step,
        token=watch.token,
        layer=found.layer,
        head=found.head,
        position=found.position,
        cell=found.cell,
        expected=found.expected,
        actual=found.actual,
        owner=found.owner,
        shared=shared,
    )
    return Located(where, steps=watch.steps)


def _sentence(victim: int, found: Departure, watch: Watch) -> str:
    """The departure in words, with its place."""
    places = [
        f"{name} {number}"
        for name, number in (
            ("step", watch.step),
            ("layer", found.layer),
            ("head", found.head),
            ("position", found.position),
            ("cell", found.cell),
        )
        if number is not None
    ]
    numbers = "" if found.expected is None else f" is {found.actual:.6g}, alone {found.expected:.6g}"
    cause = found.cause.partition(": ")[2]
    owner = "" if found.owner is None else f" (#{found.owner}'s)"
    return f"{', '.join(places)}: {found.part} of request #{victim}{numbers}: {cause}{owner}"


def _exact(factory: Factory, references: References, schedule: Schedule, answers: Mapping[int, tuple[int, ...]]) -> Schedule:
    """The schedule in float64 with the weights and tokens it has, where the target can; else as it is."""
    reference = references(schedule.settings)
    if not (factory.control.float64 and factory.control.forced) or reference.exact:
        return schedule

    def repeat(submission: int, request: Request) -> Request:
        return msgspec.structs.replace(request, forced=answers.get(submission, request.forced))

    settings = in_float64(schedule.settings, reference.precision)
    return msgspec.structs.replace(with_requests(schedule, repeat), settings=settings)


def shares_cells(factory: Factory, settings: Mapping[str, Setting], alike: bool = True) -> bool | None:
    """View or copy: whether two requests that run together have cells in common where their tokens differ.

    On a fresh target: one memory, or one content. None where the target does not let us look, or never runs two together.

    Args:
        alike: Whether the two have their first token in common, whose cell they may then rightly share.
    """
    if not factory.control.inspect:
        return None
    ids = [token for token in range(factory.vocabulary) if token not in factory.special_ids][:7]
    undrawn = {knob.name for knob in factory.knobs if not knob.drawn}
    for chosen in (dict(settings), {name: value for name, value in settings.items() if name in undrawn}):
        target = factory.open(chosen)
        target.submit(0, Request(prompt=tuple(ids[:3]), max_new_tokens=8))
        target.submit(1, Request(prompt=(ids[0 if alike else 3], *ids[3:]), max_new_tokens=8))
        cells: Mapping[int, Cells] = {}
        for _ in range(_STEPS_MAX):  # a prompt may come in pieces, and its cells a step late
            target.step()
            cells = target.inspect().cells if isinstance(target, Inspectable) else {}
            if set(cells) == {0, 1} and min(map(_length, cells.values())) >= _CELLS_LOOKED_AT:
                break
        target.close()
        if set(cells) == {0, 1} and min(map(_length, cells.values())) >= _CELLS_LOOKED_AT:
            return _in_common(cells[0], cells[1])
    return None


def _length(cells: Cells) -> int:
    """How many cells there are, in a layer that has all of them."""
    return max((keys.shape[1] for keys in cells.keys), default=0)


def _in_common(a: Cells, b: Cells) -> bool:
    """Whether a cell behind the first one is in the same memory, or holds the same content, in some layer."""
    for left, right in zip((*a.keys, *a.values), (*b.keys, *b.values), strict=True):
        both = min(left.shape[1], right.shape[1], _CELLS_LOOKED_AT)
        if bool((left[:, 1:both] == right[:, 1:both]).all(dim=-1).any()) or overlap(left, right):
            return True
    return False


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the byte ranges of two tensors meet. Interleaved views count as meeting only if their content is equal."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr() or not a.numel() or not b.numel():
        return False
    return a.data_ptr() == b.data_ptr()
