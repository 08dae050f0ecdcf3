"""The command line: `slotfuzz`, or `python -m fuzz`.

Exit codes: 0 nothing wrong; 1 something found; 2 bad use or bad input; 3 undecided.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

_NOT_YET = {
    "workers": "more than one worker",
    "python": "engines in another interpreter",
    "resume": "going on with an interrupted campaign",
    "html": "an explanation as a page",
    "script": "a failure as a script of its own",
}


def _bad(name: str, rule: str, got: object, where: str = "") -> Exception:
    """A user's mistake. Imported late, as everything here that brings torch: `--help` should not wait for it."""
    from targets.protocol import BadInput

    return BadInput(name, rule, got, where)


class _Group(click.Group):
    """Says a user's mistake in one sentence and exits with 2, without usage lines and without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.NoSuchOption as error:
            click.echo(f"option must be one that the command has (see --help), got {error.option_name}", err=True)
            code = 2
        except click.MissingParameter as error:
            name = "argument" if error.param is None else error.param.make_metavar(error.ctx or click.Context(self))
            click.echo(f"{name} must be given, got nothing (see --help)", err=True)
            code = 2
        except click.ClickException as error:
            click.echo(" ".join(error.format_message().split()), err=True)
            code = 2
        except click.Abort:
            click.echo("stopped", err=True)
            code = 130
        except ValueError as error:
            if type(error).__name__ != "BadInput":
                raise
            click.echo(" ".join(str(error).split()), err=True)
            code = 2
        sys.exit(code if isinstance(code, int) else 0)


class _Number(click.ParamType[Any]):
    """A number in a range, refused in our own words."""

    name = "number"

    def __init__(self, kind: type[int] | type[float], low: float, high: float) -> None:
        self.kind = kind
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        option = "number" if param is None else param.opts[0]
        rule = f"a {'whole ' if self.kind is int else ''}number in {self.low:,g}..{self.high:,g}"
        try:
            number = self.kind(value)
        except (TypeError, ValueError) as error:
            raise _bad(option, rule, value) from error
        if not self.low <= number <= self.high:
            raise _bad(option, rule, value)
        return number


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="slotfuzz")
def main() -> None:
    """Does any request's answer depend on who else was in the machine?"""


@main.command()
@click.option("--target", default="slots", show_default=True, help="A target's name, or package.module:factory.")
@click.option("--model", help="A tiny model's name, gemma3-270m, a folder, or a GGUF file.  [default: tiny]")
@click.option("--fault", "faults", multiple=True, help="Plant a bug (see `slotfuzz faults`); may be repeated.")
@click.option("--schedules", type=_Number(int, 1, 1e9), help="Stop after so many schedules.  [default: 1000]")
@click.option("--seconds", type=_Number(float, 0.001, 1e9), help="Stop after so many seconds.")
@click.option("--seed", type=_Number(int, 0, 1e15), help="Same seed, same schedules.  [default: random]")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--dtype", help="float64 (default), float32, bfloat16 or float16.")
@click.option("--device", help="cpu (default) or cuda.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("slotfuzz-out"), show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the totals and findings as JSON.")
@click.option("--in-process", is_flag=True, help="Play your own target in this process, as for breakpoints.")
@click.option(
    "--hang-seconds", type=_Number(float, 0.1, 1e6), help="Your own target hangs once silent so long.  [default: 5]"
)
@click.option("--sanitize", is_flag=True, help="Check every cell that a request attends to, and what lies in the others.")
@click.option("--workers", hidden=True)
@click.option("--python", hidden=True)
@click.option("--resume", is_flag=True, hidden=True)
def run(
    target: str,
    model: str | None,
    faults: tuple[str, ...],
    schedules: int | None,
    seconds: float | None,
    seed: int | None,
    sets: tuple[str, ...],
    dtype: str | None,
    device: str | None,
    out: Path,
    json_path: Path | None,
    in_process: bool,
    hang_seconds: float | None,
    sanitize: bool,
    **later: Any,
) -> int:
    """Fuzz a target: generate schedules, replay, judge, shrink and keep what fails."""
    _refuse(later)
    from fuzz.run import Run, console, set_threads
    from fuzz.run import run as run_search
    from fuzz.search import Limits
    from fuzz.worker import Patience
    from targets.registry import TargetSpec, build, default_model

    set_threads()
    spec = TargetSpec(target, model or default_model(faults), faults)
    factory = build(spec)
    if sanitize and not factory.control.tags:
        raise _bad("--sanitize", "left out for a target that keeps no shadow tags", target)
    flags = {"dtype": dtype, "device": device, "sanitize": str(True) if sanitize else None}
    settings = _settings(factory.knobs, sets, flags)
    _check_file(json_path)
    above = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise _bad("--out", "a folder that can be written", out)
    if schedules is None and seconds is None:
        schedules = 1000
    asked = Run(
        spec=spec,
        factory=factory,
        settings=settings,
        seed=secrets.randbelow(2**32) if seed is None else seed,
        limits=Limits(schedules, seconds),
        out=out,
        json=json_path,
        console=console(),
        in_process=in_process,
        patience=Patience(hang_seconds),
    )
    return run_search(asked)


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="REPRO…", type=click.Path(path_type=Path))
@click.option("--target", "own", help="The package.module:factory that the repros may import.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the outcomes as JSON.")
@click.option("--in-process", is_flag=True, help="Play your own target in this process, as for breakpoints.")
@click.option(
    "--hang-seconds", type=_Number(float, 0.1, 1e6), help="Your own target hangs once silent so long.  [default: 5]"
)
def replay(
    paths: tuple[Path, ...], own: str | None, json_path: Path | None, in_process: bool, hang_seconds: float | None
) -> int:
    """Replay stored failures: FAILED, FIXED or ERROR for each.

    A repro is data and does not choose code to run: one of a target of your own needs that target named again.
    """
    from fuzz.replaying import Outcome, Replayer
    from fuzz.report import format_finding
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from fuzz.worker import Patience
    from targets.protocol import format_schedule

    set_threads()
    _check_file(json_path)
    replayer = Replayer(own, in_process, Patience(hang_seconds))
    replayed = []
    for path in paths:
        one = replayer.replay(path)
        replayed.append(one)
        if one.outcome is Outcome.ERROR:
            click.echo(f"ERROR   {one.error}", err=True)
            continue
        bits = "bit for bit" if one.same_bits else "with other bits"
        click.echo(f"{one.outcome:<7} {path}  ({bits})")
        if one.finding is not None and one.schedule is not None:
            click.echo(format_finding(one.finding))
            click.echo("\n".join("    " + line for line in format_schedule(one.schedule).splitlines()))
    replayer.close()
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(replayed), indent=1))
    outcomes = {one.outcome for one in replayed}
    return 2 if Outcome.ERROR in outcomes else 1 if Outcome.FAILED in outcomes else 0


@main.command()
@click.argument("path", metavar="REPRO", type=click.Path(path_type=Path))
@click.option("--target", "own", help="The package.module:factory that the repro may import.")
@click.option("--html", hidden=True)
@click.option("--script", hidden=True)
def explain(path: Path, own: str | None, **later: Any) -> int:
    """Explain a stored failure: what proves it, where it began, and what it probably is."""
    _refuse(later)
    from fuzz.conductor import run_trio
    from fuzz.explain import explain as explain_repro
    from fuzz.judge import Judge
    from fuzz.replaying import Replayer
    from fuzz.run import set_threads

    set_threads()
    repro, factory = Replayer(own).open(path)
    explanation = run_trio(explain_repro, Judge(factory), repro, path)
    click.echo(explanation.text)
    return 0 if explanation.fails else 1


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def faults(as_json: bool) -> None:
    """List the planted bugs; as text, also the quirks that `--fault` plants as well and that are none."""
    from targets.faults import FAULTS, QUIRKS
    from targets.protocol import format_schedule

    if as_json:
        rows = [
            {
                "name": fault.name,
                "class": fault.group,
                "modelled_on": fault.modelled_on,
                "what": fault.doc,
                "checks": fault.checks,
                "kinds": fault.kinds,
                "models": fault.models,
                "settings": fault.settings,
                "smallest": {kind.value: schedule for kind, schedule in fault.smallest.items()},
            }
            for fault in FAULTS.values()
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1))
        return
    for fault in FAULTS.values():
        click.echo(f"{fault.name}  ({fault.group})\n  {fault.doc}\n  modelled on {fault.modelled_on}")
        click.echo(f"  shows on {' '.join(fault.models)}")
        for kind, schedule in fault.smallest.items():
            click.echo(f"  {kind}, smallest known:")
            click.echo("\n".join("    " + line for line in format_schedule(schedule).splitlines()))
        click.echo()
    for quirk in QUIRKS.values():
        click.echo(f"{quirk.name}  ({quirk.group}; no bug: nothing may be found)\n  {quirk.doc}")
        click.echo(f"  modelled on {quirk.modelled_on}\n  shows on {' '.join(quirk.models)}\n")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def targets(as_json: bool) -> None:
    """List the targets, their knobs, and what each lets us control."""
    from targets.registry import TARGETS, TargetSpec, build

    rows = []
    for name, doc in TARGETS.items():
        factory = build(TargetSpec(name))
        rows.append({"name": name, "installed": True, "what": doc, "control": factory.control, "knobs": factory.knobs})
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1))
        return
    for row in rows:
        factory = build(TargetSpec(str(row["name"])))
        control = msgspec.structs.asdict(factory.control)
        click.echo(f"{row['name']}  installed\n  {row['what']}")
        click.echo("  control: " + ", ".join(name for name, value in control.items() if value))
        for knob in factory.knobs:
            allowed = f"{knob.low}..{knob.high}" if knob.low is not None else " ".join(map(str, knob.values))
            unit = f" {knob.unit}" if knob.unit else ""
            click.echo(f"  {knob.name} = {knob.default}{unit}  ({allowed})  {knob.doc}")


@main.group()
def bench() -> None:
    """Measure slotfuzz itself."""


@bench.command("speed")
@click.option("--schedules", type=_Number(int, 1, 1e6), default=200, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def bench_speed(schedules: int, json_path: Path | None) -> None:
    """Tokens checked a second, and the share of the time that is not spent in forwards."""
    from fuzz.bench import speed

    _figures(speed, schedules, json_path)


@bench.command("sanitize")
@click.option("--schedules", type=_Number(int, 1, 1e6), default=100, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def bench_sanitize(schedules: int, json_path: Path | None) -> None:
    """What --sanitize costs: the same schedules judged with and without it, in turn."""
    from fuzz.bench import sanitizing

    _figures(sanitizing, schedules, json_path)


def _figures(measure: Callable[[int], dict[str, float]], schedules: int, json_path: Path | None) -> None:
    """Measures, prints a figure a line, and writes them down."""
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads

    set_threads()
    _check_file(json_path)
    figures = measure(schedules)
    for name, value in figures.items():
        click.echo(f"{name:<44} {value:.3f}")
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(figures), indent=1))


@bench.command("shrink")
@click.option("--fault", "names", multiple=True, help="Only this planted bug; may be repeated.  [default: all]")
@click.option("--trials", type=_Number(int, 1, 1000), default=10, show_default=True, help="Seeds a fault.")
@click.option("--seed", type=_Number(int, 0, 1e15), default=0, show_default=True, help="The first seed.")
@click.option("--schedules", type=_Number(int, 1, 1e6), default=500, show_default=True, help="Give up after so many.")
@click.option("--dtype", default="float64", show_default=True, help="As for `slotfuzz run`.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every trial as JSON.")
def bench_shrink(names: tuple[str, ...], trials: int, seed: int, schedules: int, dtype: str, json_path: Path | None) -> int:
    """Each planted bug alone: schedules to the first failure, what it shrinks to, and evaluations; 1 if one is missed."""
    from fuzz.bench import shrinking
    from fuzz.report import format_trials
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from targets.faults import FAULTS, find_faults

    set_threads()
    _check_dtype(dtype)
    _check_file(json_path)
    found = []
    for trial in shrinking(find_faults(names or tuple(FAULTS)), range(seed, seed + trials), schedules, dtype):
        found.append(trial)
        if trial.seed == seed + trials - 1:
            click.echo(format_trials([other for other in found if other.fault == trial.fault]))
    click.echo(format_trials(found, "all"))
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(found), indent=1))
    return int(any(trial.schedules is None for trial in found))


@bench.command("dose")
@click.option("--model", default="tiny", show_default=True, help="As for `slotfuzz run`.")
@click.option("--schedules", type=_Number(int, 1, 1e6), default=16, show_default=True, help="For each dtype and share.")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; may be repeated.  [default: all four]")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the counts as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw them, .png or .svg (needs slotfuzz[plot]).")
def bench_dose(model: str, schedules: int, dtypes: tuple[str, ...], json_path: Path | None, plot: Path | None) -> int:
    """How small a leak each check still sees; 1 if the swap misses one of a thousandth or more, or a source is misnamed."""
    from fuzz.dose import NAMED_SCHEDULES, holds, naming, responses
    from fuzz.dose_picture import HEADING, check_picture, draw, format_naming, format_response
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from targets.models import DTYPES, find_model

    set_threads()
    _check_file(json_path)
    if plot is not None:
        _check_file(plot, "--plot")
        check_picture(plot)
    for dtype in dtypes:
        _check_dtype(dtype)
    found = find_model(model)
    click.echo(HEADING)
    measured = []
    for response in responses(found, schedules, tuple(dict.fromkeys(dtypes)) or tuple(DTYPES)):
        measured.append(response)
        click.echo(format_response(response))
    named = naming(found, NAMED_SCHEDULES)
    click.echo(format_naming(named))
    if json_path is not None:
        figures = {"model": found.identity, "schedules": schedules, "responses": measured, "naming": named}
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(figures), indent=1))
    if plot is not None:
        draw(measured, found.name, plot)
    return int(not holds(measured, named))


def _check_dtype(dtype: str) -> None:
    from targets.models import DTYPES

    if dtype not in DTYPES:
        raise _bad("--dtype", "one of " + ", ".join(DTYPES), dtype)


def _refuse(later: dict[str, Any]) -> None:
    """Refuses flags of what is not built yet."""
    for name, value in later.items():
        if value:
            raise _bad(f"--{name}", f"left out ({_NOT_YET[name]} is not built yet)", value)


def _check_file(path: Path | None, option: str = "--json") -> None:
    """Refuses a file to write that can't be one, before any work is done."""
    if path is not None and ((path.exists() and not path.is_file()) or not path.absolute().parent.is_dir()):
        raise _bad(option, "a plain file in a folder that exists", path)


def _settings(knobs: tuple[Any, ...], sets: tuple[str, ...], flags: dict[str, str | None]) -> dict[str, Any]:
    """Settings from --set and from the flags that stand for a knob."""
    by_name = {knob.name: knob for knob in knobs}
    words = [(name, value, f"--{name}") for name, value in flags.items() if value is not None]
    for word in sets:
        name, separator, value = word.partition("=")
        if not separator:
            raise _bad("--set", "KNOB=VALUE", word)
        words.append((name, value, "--set"))
    settings: dict[str, Any] = {}
    for name, text, where in words:
        if name not in by_name:
            raise _bad("knob", "one of " + ", ".join(by_name), name, where)
        if name in settings:
            raise _bad("knob", "set once", name, where)
        settings[name] = by_name[name].parse(text, where)
    return settings


if __name__ == "__main__":
    main(prog_name="slotfuzz")
