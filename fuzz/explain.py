"""`slotfuzz explain`: one stored failure, told in prose: what, which schedule, what proves it, where it began, why.

Rendering, and the order in which the parts are asked for: the experiments are `fuzz.bisection`'s, the place is found by
`fuzz.locate`, the table is `oracle.symptoms`. What can't be told says why.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.bisection import ONE_A_STEP, ONE_LENGTH, Outcome, bisect, is_past
from fuzz.edits import keep_requests
from fuzz.judge import Judge
from fuzz.locate import Located, locate, watched
from fuzz.report import replay_of
from fuzz.repro import Repro
from fuzz.watch import StepCells
from oracle.finding import Finding
from oracle.symptoms import Clues, Symptom, match
from targets.protocol import CheckName, Kind, Schedule, Trace, digest, emitted_by_submission, format_schedule, with_requests

_WIDTH = 100
_LAYERS_SHOWN = 3
_STEPS_SHOWN = 12

_BROKEN = {
    Kind.OWNERSHIP: "the target's account of its slots does not add up: ",
    Kind.BOOKKEEPING: "a client was told something else than was decided: ",
    Kind.STALLED: "a request waits for ever: ",
    Kind.CRASHED: "the target broke down: ",
}
"""What a complaint comes to, for kinds whose findings only quote it."""


@dataclass(frozen=True)
class Explanation:
    """The text, and whether the failure is still there."""

    text: str
    fails: bool


@dataclass(frozen=True)
class CellTable:
    """The victim's cells step by step, here and alone; or why there are none."""

    here: Sequence[StepCells] = ()
    alone: Sequence[StepCells] = ()
    why: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What the experiments gave, and the row of the table that it fits."""

    located: Located
    outcomes: Sequence[Outcome]
    symptom: Symptom | None


async def diagnose(judge: Judge, schedule: Schedule, finding: Finding, trace: Trace) -> Diagnosis:
    """Locates a failure, narrows it down, and looks it up."""
    if finding.check is CheckName.REPEAT:
        located = Located(why="it takes a run before this one, and one run is looked at")
    else:
        located = await locate(judge.factory, judge.reference, schedule, finding, trace)
    outcomes = await bisect(judge, schedule, finding, located)
    gone = {outcome.name: outcome.gone for outcome in outcomes}
    clues = Clues(
        finding,
        located.where,
        past=is_past(trace, finding),
        serialised_gone=gone.get(ONE_A_STEP),
        equal_lengths_gone=gone.get(ONE_LENGTH),
    )
    return Diagnosis(located, outcomes, match(clues))


@dataclass(frozen=True)
class Study:
    """A stored failure that is still there, and all that is known of it."""

    repro: Repro
    finding: Finding
    trace: Trace
    diagnosis: Diagnosis
    cells: CellTable


async def study(judge: Judge, repro: Repro) -> Study | None:
    """Replays a stored failure and looks into it; None where it is fixed."""
    schedule, wanted = repro.schedule, repro.finding
    trace = await judge.replay(schedule)
    now = await judge.same(schedule, wanted.kind, wanted.check)
    if now is None:
        return None
    finding = wanted if digest(trace) == repro.trace_digest else now
    diagnosis = await diagnose(judge, schedule, finding, trace)
    return Study(repro, finding, trace, diagnosis, await _cells(judge, schedule, finding, trace))


async def explain(judge: Judge, repro: Repro, path: Path) -> Explanation:
    """Replays a stored failure and tells what is known of it."""
    studied = await study(judge, repro)
    return Explanation(fixed(repro, path), False) if studied is None else Explanation(told(studied, path), True)


def fixed(repro: Repro, path: Path) -> str:
    """What there is to say of a failure that is not there any more."""
    again = replay_of(repro, path)
    return f"FIXED   {path}: the {repro.finding.kind} that it stored is not found any more\n\n  {again}"


def told(study: Study, path: Path) -> str:
    """A study in prose."""
    finding, diagnosis = study.finding, study.diagnosis
    parts = [
        headline(finding),
        _section("The smallest schedule", format_schedule(study.repro.schedule).splitlines()),
        _section("What proves it", _bullets(finding.evidence or [finding.what])),
        _section("Where it began", _where(diagnosis.located)),
        _section(f"The cells of {_who(finding)}, step by step", _table(study.cells)),
        _section("Narrowing it down", _bullets([f"{step.name}: {step.sentence}" for step in diagnosis.outcomes])),
        _section("What it looks like", _symptom(diagnosis.symptom)),
        f"Replay it, and again once it is fixed:\n\n  {replay_of(study.repro, path)}",
    ]
    return "\n\n".join(part for part in parts if part)


async def _cells(judge: Judge, schedule: Schedule, finding: Finding, trace: Trace) -> CellTable:
    """The victim's cells in the schedule, and in one where it is alone and has the same tokens forced."""
    who, factory = finding.submission, judge.factory
    if who is None:
        return CellTable(why="not shown: the finding names no request")
    if finding.kind in (Kind.CRASHED, Kind.STALLED) and not judge.stage.in_process:
        return CellTable(why="not shown: what breaks down in a process of its own is not run in this one")
    answer = emitted_by_submission(trace).get(who, [])
    if not answer:
        return CellTable(why="none: it was given no token")
    lone = keep_requests(schedule, {who})
    if factory.control.forced:
        forced = tuple(event.token for event in answer)
        lone = with_requests(lone, lambda _, request: msgspec.structs.replace(request, forced=forced))
    try:
        here = await watched(factory, judge.reference, schedule, who, to_the_end=True, trace=trace)
        alone = await watched(factory, judge.reference, lone, 0, to_the_end=True)
    except Exception as error:  # a network that can't be looked into is no reason to say nothing else
        return CellTable(why=f"not shown: looking at them raised {type(error).__name__}: {error}")
    if not here.steps or not alone.steps:
        return CellTable(why=f"not shown: {here.why or alone.why or 'its attention was not seen'}")
    return CellTable(here.steps, alone.steps)


def headline(finding: Finding) -> str:
    """What is wrong, in a sentence or two."""
    text = f"{finding.kind}: {_BROKEN.get(finding.kind, '')}{finding.what}."
    if finding.expected is not None and finding.actual is not None:
        got = f"Token {finding.position} of its answer is {finding.actual}"
        same = finding.expected == finding.actual
        text += f" {got}, as alone, but its logits are not." if same else f" {got}; alone it is {finding.expected}."
    return "\n".join(textwrap.wrap(text, _WIDTH))


def _who(finding: Finding) -> str:
    return "the victim" if finding.submission is None else f"request #{finding.submission}"


def _where(located: Located) -> list[str]:
    where = located.where
    if where is None:
        return _wrapped(f"Not known: {located.why}.")
    if where.step is None:
        told = "It shows in what the target says, not in an attention."
    else:
        told = f"At {where.what}. Everything before that agrees with the request alone."
    return [*_wrapped(told), f"Site: {where.site}"]


def _table(cells: CellTable) -> list[str]:
    """A line a step, the first departure marked; of many layers, those from the first one that departs.

    Steps are held against those of the request alone in which it had run as many tokens: what it may share, where it was
    preempted, and what a step's budget left for it change how many it takes.
    """
    if cells.why:
        return _wrapped(cells.why)
    alone = {step.tokens: step for step in cells.alone}
    rows = [(here, alone.get(here.tokens)) for here in cells.here]
    apart = [index for index, (here, there) in enumerate(rows) if there is not None and not _same(here, there)]
    layers = len(cells.here[0].checksums)
    first_layer = 0
    if apart and layers > _LAYERS_SHOWN:
        here, there = rows[apart[0]]
        assert there is not None, "only two steps can differ"
        differs = [layer for layer in range(layers) if here.checksums[layer] != there.checksums[layer]]
        first_layer = min(differs[0], layers - _LAYERS_SHOWN) if differs else 0
    shown = range(first_layer, min(layers, first_layer + _LAYERS_SHOWN))
    heads = "  ".join(f"{f'layer {layer}':<8} {'alone':<8}" for layer in shown)
    lines = [f"{'step':>4}  {'tokens run':>10}  {'cells':>5}  {'alone':>5}  {heads}"]
    start = max(0, apart[0] - _STEPS_SHOWN // 2) if apart else 0
    if start:
        lines.append(f"   … {start} steps" + ("" if _compared(rows[:start]) < start else " alike"))
    for index, (here, there) in list(enumerate(rows))[start : start + _STEPS_SHOWN]:
        length = "-" if there is None else str(there.length)
        sums = "  ".join(
            f"{here.checksums[layer]:08x} {'-' if there is None else f'{there.checksums[layer]:08x}':<8}" for layer in shown
        )
        mark = "  <- departs" if apart[:1] == [index] else ""
        lines.append(f"{here.step:>4}  {here.tokens:>10}  {here.length:>5}  {length:>5}  {sums}{mark}".rstrip())
    if len(rows) > start + _STEPS_SHOWN:
        lines.append(f"   … {len(rows) - start - _STEPS_SHOWN} steps more")
    compared = _compared(rows)
    if not apart and compared:
        every = "every step" if compared == len(rows) else f"the {compared} of {len(rows)} steps that can be compared"
        lines.append(f"The same in {every}: its cells are as alone.")
    if compared < len(rows):
        lines.append("-: alone, it runs other numbers of tokens at a time.")
    return lines


def _compared(rows: Sequence[tuple[StepCells, StepCells | None]]) -> int:
    """How many steps have one to be held against."""
    return sum(there is not None for _, there in rows)


def _same(here: StepCells, alone: StepCells) -> bool:
    return (here.length, here.checksums) == (alone.length, alone.checksums)


def _bullets(sentences: Sequence[str]) -> list[str]:
    wrapped = [textwrap.wrap(text, _WIDTH - 2, initial_indent="- ", subsequent_indent="  ") for text in sentences]
    return [line for lines in wrapped for line in lines]


def _symptom(row: Symptom | None) -> list[str]:
    if row is None:
        return ["No row of the table of symptoms fits what is known."]
    told = {"symptom": row.symptom, "cause": row.cause, "decides": row.experiment, "fix": row.fix}
    lines = [f"{row.name}"]
    for name, text in told.items():
        lines += textwrap.wrap(f"{name:<8} {text}", _WIDTH - 2, subsequent_indent=" " * 9)
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 2)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines)]) if lines else ""
