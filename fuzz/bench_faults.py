"""Bench faults: which tasks there are, done one by one into a ledger, and what the ledger comes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fuzz.fault_bench.attempts import Task, Trial
from fuzz.fault_bench.exchanges import Exchanged, ExchangeTask
from fuzz.fault_bench.figures import Against, Line, Whole, against, lines, wholes
from fuzz.fault_bench.ledger import AnyTask, Entry, add, missing, performed, read, version
from fuzz.fault_bench.pairs import Pair, PairTask, compatible
from fuzz.fault_bench.tables import markdown
from fuzz.fault_bench.twins import Twin, TwinTask
from fuzz.fault_bench.ways import OURS
from targets.faults.generated import FIELDS

TRIALS, SECONDS = 10, 60.0
BASELINE_TRIALS, BASELINE_SECONDS = 3, 10.0
PAIR_SCHEDULES = 60


class Figures(msgspec.Struct, frozen=True):
    """What a bench comes to, as it is written to a file.

    Attributes:
        versions: Of the sources that results are of, and how many of each.
    """

    versions: dict[str, int]
    ways: tuple[Whole, ...]
    against: tuple[Against, ...]
    lines: tuple[Line, ...]
    twins: tuple[Twin, ...]
    pairs: tuple[Pair, ...]
    exchanges: tuple[Exchanged, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured.

    Attributes:
        trials, seconds: For each fault and way; by default more for ours than for the others.
        twin_schedules: For the honest twin of each fault; 0 for none.
        pairs: So many of two faults at once.
        exchange_schedules: For each field that two requests exchange; 0 for none.
    """

    faults: tuple[str, ...]
    ways: tuple[str, ...]
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    twin_schedules: int = 0
    pairs: int = 0
    exchange_schedules: int = 0

    def tasks(self) -> list[AnyTask]:
        """All of them; the trials seed by seed, so that what is there after half the time is half of each fault's."""
        trials: list[Task] = []
        for way in self.ways:
            count = self.trials or (TRIALS if way == OURS else BASELINE_TRIALS)
            seconds = self.seconds or (SECONDS if way == OURS else BASELINE_SECONDS)
            trials += [
                Task(fault=fault, way=way, seed=seed, seconds=seconds)
                for seed in range(self.seed, self.seed + count)
                for fault in self.faults
            ]
        twins = [TwinTask(fault=name, schedules=self.twin_schedules, seed=self.seed) for name in self.faults]
        pairs = [
            PairTask(first=first, second=second, schedules=PAIR_SCHEDULES, seed=self.seed)
            for first, second in compatible(self.faults, self.pairs, self.seed)
        ]
        exchanges = [ExchangeTask(field=each.name, schedules=self.exchange_schedules, seed=self.seed) for each in FIELDS]
        return [
            *trials,
            *(twins if self.twin_schedules else ()),
            *pairs,
            *(exchanges if self.exchange_schedules else ()),
        ]


def measure(plan: Plan, ledger: Path, workers: int, console: Console) -> None:
    """Does what the ledger does not have yet. Ctrl-C ends it, and loses only what was under way."""
    tasks = missing(ledger, plan.tasks())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        shown = progress.add_task("", total=len(tasks))
        for result in performed(tasks, workers):
            add(ledger, result)
            progress.update(shown, advance=1, description=_name(result.task))


def figures(ledger: Path, plan: Plan, frozen: Sequence[Path] = ()) -> tuple[Figures, list[Trial]]:
    """What a plan came to, and what other ledgers have of its faults; of a task that stands in several, the first counts."""
    asked = set(plan.tasks())
    entries: dict[AnyTask, Entry] = {}
    for path in frozen:
        entries |= {entry.result.task: entry for entry in read(path) if _is_of(entry.result.task, plan.faults)}
    entries |= {entry.result.task: entry for entry in read(ledger) if entry.result.task in asked}
    counts: dict[str, int] = {}
    for entry in entries.values():
        counts[entry.version] = counts.get(entry.version, 0) + 1
    results = [entry.result for entry in entries.values()]
    trials = [result for result in results if isinstance(result, Trial)]
    by_fault = lines(trials)
    made = Figures(
        versions=counts,
        ways=tuple(wholes(by_fault)),
        against=tuple(against(by_fault)),
        lines=tuple(by_fault),
        twins=tuple(result for result in results if isinstance(result, Twin)),
        pairs=tuple(result for result in results if isinstance(result, Pair)),
        exchanges=tuple(result for result in results if isinstance(result, Exchanged)),
    )
    return made, trials


def holds(made: Figures) -> bool:
    """Whether ours found every fault in every trial, nothing on a twin, and every exchange that must be found."""
    solved = all(line.is_solved for line in made.lines if line.way == OURS)
    return solved and not any(twin.alarms for twin in made.twins) and all(each.is_right for each in made.exchanges)


def as_markdown(made: Figures) -> str:
    """The figures as a document."""
    text = markdown(made.ways, made.against, made.lines, made.twins, made.pairs, made.exchanges)
    others = {name: count for name, count in made.versions.items() if name != version()}
    if others:
        told = ", ".join(f"{count} of {name}" for name, count in others.items())
        text += f"\nOf other sources than these ({version()}): {told}.\n"
    return text


def _is_of(task: AnyTask, faults: Sequence[str]) -> bool:
    if isinstance(task, ExchangeTask):
        return False
    return {task.first, task.second} <= set(faults) if isinstance(task, PairTask) else task.fault in faults


def _name(task: AnyTask) -> str:
    if isinstance(task, ExchangeTask):
        return task.field
    return f"{task.first} + {task.second}" if isinstance(task, PairTask) else task.fault
