"""`slotfuzz run`: one search from the command line, with its gate, its progress line, and its findings kept."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

from fuzz import repro as repros
from fuzz.commandline import memory_gib
from fuzz.conductor import run_trio
from fuzz.followup import Failure
from fuzz.fresh import Afresh, Manner
from fuzz.report import (
    EXIT_CODES,
    as_json,
    finding_fields,
    format_repro,
    format_settings,
    format_tally,
    replay_command,
    totals,
)
from fuzz.search import Limits, Search, Tally
from fuzz.stage import Stage
from fuzz.worker import Patience, stage_for
from targets.models import REACTIVITY_MIN, reactivity
from targets.protocol import BadInput, Factory, Setting
from targets.registry import TargetSpec

_LARGE_WEIGHTS = 20_000_000


@dataclass
class Run:
    """What the user asked for.

    Attributes:
        ray: The words that say which cluster a campaign's workers are on, and what each gets there.
    """

    spec: TargetSpec
    factory: Factory
    settings: dict[str, Setting]
    seed: int
    limits: Limits
    out: Path
    json: Path | None
    console: Console
    in_process: bool = False
    python: Path | None = None
    in_a_row: int | None = None
    ray: tuple[str, ...] = ()
    patience: Patience = field(default_factory=Patience)
    failures: list[tuple[Path, repros.Repro]] = field(default_factory=list)


def run(asked: Run) -> int:
    """Searches, prints, stores; returns the exit code. Ctrl-C ends the search and keeps what it found."""
    announce(asked)
    stage = stage_for(
        asked.spec, asked.factory, asked.in_process, asked.patience, _found(asked) / "running.json", asked.python
    )
    search = Search(
        asked.factory,
        asked.seed,
        asked.limits,
        asked.settings,
        lambda failure: _keep(asked, search, failure),
        stage=stage,
        in_a_row=asked.in_a_row,
    )
    interrupted, existed = False, asked.out.exists()
    try:
        reference = search.judge.reference(asked.settings)
        rounding = f"rounding: in {reference.precision}, logits may differ by {reference.bound:.3g}"
        asked.console.print(rounding, markup=False, highlight=False)
        search.tally.mute = not is_reactive(asked, reference.network)
        with progress(asked) as bar:
            task = bar.add_task("", total=asked.limits.schedules, found=0)
            search.on_schedule = lambda tally: bar.update(task, completed=tally.schedules, found=len(asked.failures))
            run_trio(search.run)
    except KeyboardInterrupt:
        interrupted = True
    except BadInput:  # the target can't be built in a worker
        _put_away(asked, stage, existed)
        raise
    _put_away(asked, stage, existed)
    if interrupted and not search.tally.schedules:
        _next_command(asked, {}, "stopped before any schedule was judged", asked.seed)
        return 130
    stored = _stored(asked, search.tally)
    for path, repro in stored.items():
        asked.console.print(format_repro(repro, path), markup=False, highlight=False)
        asked.console.print()
    judge, tally = search.judge, search.tally
    forwards = judge.forwards()
    outside = forwards.share_outside(tally.seconds)
    told = format_tally(tally, asked.factory.control, forwards.fill, outside, tally.verdict)
    asked.console.print(told, markup=False, highlight=False)
    if asked.json is not None:
        fields = totals(tally, forwards, asked.seed, judge.reference(asked.settings).bound, tally.verdict)
        fields["first_found_after"] = min((failure.found_after for failure in tally.failures), default=None)
        fields["findings"] = [finding_fields(path, repro) for path, repro in stored.items()]
        repros.write_atomically(asked.json, as_json(fields))
    _next_command(asked, stored, "stopped; what was found is kept" if interrupted else "", asked.seed + 1)
    return EXIT_CODES[search.tally.verdict]


def _put_away(asked: Run, stage: Stage, existed: bool) -> None:
    """Nothing runs any more; a run that has nothing to keep leaves no folder that was not there before (`existed`)."""
    with contextlib.suppress(KeyboardInterrupt):  # typed twice; what is still there ends with us
        stage.close()
    if not asked.failures:
        _remove_if_empty(_found(asked), _found(asked).parent, *(() if existed else (asked.out,)))


def announce(asked: Run) -> None:
    """Seed, target and every setting, before anything starts."""
    limits = [
        f"{limit} {unit}"
        for limit, unit in ((asked.limits.schedules, "schedules"), (asked.limits.seconds, "seconds"))
        if limit is not None
    ]
    faults = "".join(f", planted: {fault}" for fault in asked.spec.faults)
    each = asked.factory.control.in_a_row if asked.in_a_row is None else asked.in_a_row
    rows = f", each of {each} in a row on one target" if each > 1 else ""
    lines = [
        f"seed {asked.seed}, {' or '.join(limits)}{rows}",
        f"target {asked.spec.target}, model {asked.factory.identity}{faults}",
        format_settings(asked.factory.knobs, asked.settings),
    ]
    asked.console.print("\n".join(lines), markup=False, highlight=False)


def is_reactive(asked: Run, network: nn.Module) -> bool:
    """The reactivity gate: a model that answers the same whatever it is asked cannot convict anybody."""
    large = sum(weight.numel() for weight in network.parameters()) > _LARGE_WEIGHTS
    changed, tried = reactivity(network, asked.factory.vocabulary, 12, 8 if large else 16)
    enough = changed >= REACTIVITY_MIN * tried
    verdict = "" if enough else f", which is under {REACTIVITY_MIN:.0%}: a pass would mean nothing, so none is given"
    asked.console.print(
        f"reactivity: {changed} of {tried} one-token changes of a prompt change the answer{verdict}",
        markup=False,
        highlight=False,
    )
    return enough


def progress(asked: Run) -> Progress:
    """A line that moves, on a terminal."""
    return Progress(
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.completed} schedules, {task.fields[found]} failures"),
        TimeElapsedColumn(),
        console=asked.console,
        transient=True,
        disable=not asked.console.is_terminal,
    )


def _keep(asked: Run, search: Search, failure: Failure) -> None:
    """Writes a failure down the moment it is found: a run that is killed loses nothing."""
    bound = search.judge.reference(asked.settings).bound
    repro = repros.make(failure, asked.spec, asked.factory, bound, asked.seed)
    asked.failures.append((repros.save(repro, _found(asked)), repro))


def _found(asked: Run) -> Path:
    """Where this run puts what it has found and not yet confirmed; runs that share a folder keep out of each other's way."""
    return asked.out / "found" / f"run-{os.getpid()}"


def _stored(asked: Run, tally: Tally) -> dict[Path, repros.Repro]:
    """Confirms what was found; a second Ctrl-C leaves it where it was written down first."""
    if not asked.failures:
        return {}
    asked.console.print(f"replaying what was found in a fresh process: {len(asked.failures)}")
    try:
        return _confirm(asked, tally)
    except KeyboardInterrupt:
        asked.console.print(f"not confirmed: they lie in {_found(asked)}", markup=False)
        return {}


def _confirm(asked: Run, tally: Tally) -> dict[Path, repros.Repro]:
    """Replays every failure in a fresh process, and stores in `repros/` those that fail there too, bit for bit."""
    stored: dict[Path, repros.Repro] = {}
    manner = Manner(asked.spec, asked.in_process, None if asked.in_process else asked.patience.limit_s, asked.python)
    afresh = Afresh([path for path, _ in asked.failures], manner, _found(asked) / "outcomes.json")
    try:
        heard = afresh.wait()
    finally:
        afresh.end()
    for path, repro in asked.failures:
        told = heard.get(path)
        if told is not None and told.outcome == "FAILED" and (told.same_bits or not asked.factory.control.stepped):
            stored[repros.save(repro, asked.out / "repros")] = repro
            path.unlink(missing_ok=True)
        else:
            tally.unstable.append(f"{path} gives {told.outcome if told else 'nothing'} in a fresh process")
            tally.failures = [failure for failure in tally.failures if failure.schedule != repro.schedule]
    if len(stored) == len(asked.failures):
        _remove_if_empty(_found(asked), _found(asked).parent)
    return stored


def _remove_if_empty(*folders: Path) -> None:
    """Removes folders, innermost first, up to one that is not there or in which something lies: another run's findings."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _next_command(asked: Run, stored: dict[Path, repros.Repro], stopped: str, seed: int) -> None:
    """The line to type next: the failures again, or this seed; `stopped` says what became of a run that was interrupted."""
    arguments = asked.spec.arguments()
    if asked.limits.schedules is not None:
        arguments += ["--schedules", str(asked.limits.schedules)]
    if asked.limits.seconds is not None:
        arguments += ["--seconds", f"{asked.limits.seconds:g}"]
    for name, value in asked.settings.items():
        arguments += ["--set", f"{name}={value}"]
    if asked.python is not None:
        arguments += ["--python", str(asked.python)]
    if asked.in_a_row is not None:
        arguments += ["--in-a-row", str(asked.in_a_row)]
    if asked.in_process:
        arguments.append("--in-process")
    if asked.patience.hang_s is not None:
        arguments += ["--hang-seconds", f"{asked.patience.hang_s:g}"]
    if (limit := memory_gib()) is not None:
        arguments += ["--memory-gib", f"{limit:g}"]
    go_on = " ".join(["slotfuzz run", *arguments, "--seed", str(seed), "--out", str(asked.out)])
    lines = [stopped] if stopped else []
    again = replay_command(asked.spec, *stored, memory_gib=memory_gib()) if stored else ""
    lines.append(f"next: {go_on if stopped or not stored else again}")
    asked.console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def console() -> Console:
    """Where people read: plain text, wrapped nowhere, coloured nowhere."""
    return Console(highlight=False, soft_wrap=True)


def set_threads() -> None:
    """One thread: the order of a sum must not depend on how many cores are free."""
    torch.set_num_threads(1)
