"""`slotfuzz bench`: slotfuzz measured against itself, and its decoder against others, from the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from fuzz.commandline import Benches, Number, bad, check_dtype, check_file, check_python, read_settings


@click.group(cls=Benches)
def bench() -> None:
    """Measure slotfuzz itself."""


@bench.command("speed")
@click.option("--schedules", type=Number(int, 1, 1e6), default=200, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def bench_speed(schedules: int, json_path: Path | None) -> None:
    """Tokens checked a second, and the share of the time that is not spent in forwards."""
    from fuzz.bench import speed

    _figures(speed, schedules, json_path)


@bench.command("sanitize")
@click.option("--schedules", type=Number(int, 1, 1e6), default=100, show_default=True)
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
    check_file(json_path)
    figures = measure(schedules)
    for name, value in figures.items():
        click.echo(f"{name:<44} {value:.3f}")
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(figures), indent=1))


@bench.command("shrink")
@click.option("--fault", "names", multiple=True, help="Only this planted bug; may be repeated.  [default: all]")
@click.option("--trials", type=Number(int, 1, 1000), default=10, show_default=True, help="Seeds a fault.")
@click.option("--seed", type=Number(int, 0, 1e15), default=0, show_default=True, help="The first seed.")
@click.option("--schedules", type=Number(int, 1, 1e6), default=500, show_default=True, help="Give up after so many.")
@click.option("--dtype", default="float64", show_default=True, help="As for `slotfuzz run`.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every trial as JSON.")
def bench_shrink(names: tuple[str, ...], trials: int, seed: int, schedules: int, dtype: str, json_path: Path | None) -> int:
    """Each planted bug alone: schedules to the first failure, what it shrinks to, and evaluations; 1 if one is missed."""
    from fuzz.fault_bench.attempts import Task, attempt
    from fuzz.fault_bench.tables import format_trials
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from targets.faults import FAULTS, find_faults

    set_threads()
    check_dtype(dtype)
    check_file(json_path)
    found = []
    for fault in find_faults(names or tuple(FAULTS)):
        seeds = range(seed, seed + trials)
        mine = [attempt(Task(fault=fault.name, seed=each, schedules=schedules, dtype=dtype)) for each in seeds]
        click.echo(format_trials(mine))
        found += mine
    click.echo(format_trials(found, "all"))
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(found), indent=1))
    return int(any(trial.found is None for trial in found))


@bench.command("faults")
@click.option("--fault", "names", multiple=True, help="Only this planted bug; may be repeated.  [default: all]")
@click.option("--way", "ways", multiple=True, help="Of making up schedules; may be repeated; or all.  [default: slotfuzz]")
@click.option("--trials", type=Number(int, 1, 1000), help="Seeds a fault and way.  [default: 10; 3 for other ways]")
@click.option("--seconds", type=Number(float, 0.1, 1e5), help="For each trial.  [default: 60; 10 for other ways]")
@click.option("--seed", type=Number(int, 0, 1e15), default=0, show_default=True, help="The first seed.")
@click.option(
    "--twins", type=Number(int, 0, 1e6), default=0, show_default=True, help="Schedules on each fault's honest twin."
)
@click.option("--pairs", type=Number(int, 0, 1e4), default=0, show_default=True, help="So many times two bugs at once.")
@click.option(
    "--exchanges", type=Number(int, 0, 1e6), default=0, show_default=True, help="Schedules on each exchanged field."
)
@click.option("--workers", type=Number(int, 1, 1024), default=1, show_default=True, help="Processes.")
@click.option("--ledger", type=click.Path(path_type=Path), help="Where results are kept; what it has is not done again.")
@click.option("--frozen", multiple=True, type=click.Path(path_type=Path), help="A ledger to hold these results against.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures as JSON.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the tables, of each fault as well."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw survival curves, .png or .svg (needs slotfuzz[plot]).")
def bench_faults(
    names: tuple[str, ...],
    ways: tuple[str, ...],
    trials: int | None,
    seconds: float | None,
    seed: int,
    twins: int,
    pairs: int,
    exchanges: int,
    workers: int,
    ledger: Path | None,
    frozen: tuple[Path, ...],
    json_path: Path | None,
    markdown_path: Path | None,
    plot: Path | None,
) -> int:
    """What is found, how soon, and by whom else; 1 if a bug was missed in any trial, or a twin gave an alarm."""
    from fuzz.bench_faults import Plan, as_markdown, figures, holds, measure
    from fuzz.dose_picture import check_picture
    from fuzz.fault_bench.picture import draw
    from fuzz.fault_bench.ways import OURS, WAYS
    from fuzz.repro import write_atomically
    from fuzz.run import console, set_threads
    from targets.faults import FAULTS, find_faults

    set_threads()
    for path, option in ((ledger, "--ledger"), (json_path, "--json"), (markdown_path, "--markdown"), (plot, "--plot")):
        check_file(path, option)
    if plot is not None:
        check_picture(plot)
    for path in frozen:
        if not path.is_file():
            raise bad("--frozen", "a ledger that exists", path)
    for way in ways:
        if way not in (*WAYS, "all"):
            raise bad("--way", "all, or one of " + ", ".join(WAYS), way)
    plan = Plan(
        faults=tuple(fault.name for fault in find_faults(names or tuple(FAULTS))),
        ways=tuple(WAYS) if "all" in ways else tuple(dict.fromkeys(ways or (OURS,))),
        trials=trials,
        seconds=seconds,
        seed=seed,
        twin_schedules=twins,
        pairs=pairs,
        exchange_schedules=exchanges,
    )
    with tempfile.TemporaryDirectory() as nowhere:
        path = ledger or Path(nowhere) / "ledger.jsonl"
        measure(plan, path, workers, console())
        made, of_trials = figures(path, plan, frozen)
    text = as_markdown(made)
    click.echo(text.partition("## Each fault")[0].rstrip() if markdown_path else text.rstrip())
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(made), indent=1))
    if markdown_path is not None:
        write_atomically(markdown_path, text.encode())
    if plot is not None:
        draw(of_trials, plot)
    return int(not holds(made))


@bench.command("dose")
@click.option("--model", default="tiny", show_default=True, help="As for `slotfuzz run`.")
@click.option("--schedules", type=Number(int, 1, 1e6), default=16, show_default=True, help="For each dtype and share.")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; may be repeated.  [default: all four]")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the counts as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw them, .png or .svg (needs slotfuzz[plot]).")
@click.option(
    "--cell", "one_cell", is_flag=True, help="One cell, of K or V, moved towards the neighbour's; nothing is judged."
)
def bench_dose(
    model: str, schedules: int, dtypes: tuple[str, ...], json_path: Path | None, plot: Path | None, one_cell: bool
) -> int:
    """How small a leak each check still sees; 1 if the swap misses one of a thousandth or more, or a source is misnamed."""
    from fuzz.dose import NAMED_SCHEDULES, holds, naming, responses
    from fuzz.dose_picture import HEADING, check_picture, draw, format_naming, format_response
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from targets.models import DTYPES, find_model

    set_threads()
    check_file(json_path)
    if plot is not None:
        check_file(plot, "--plot")
        check_picture(plot)
    for dtype in dtypes:
        check_dtype(dtype)
    found = find_model(model)
    click.echo(HEADING)
    measured = []
    for response in responses(found, schedules, tuple(dict.fromkeys(dtypes)) or tuple(DTYPES), one_cell=one_cell):
        measured.append(response)
        click.echo(format_response(response))
    named = None if one_cell else naming(found, NAMED_SCHEDULES)
    if named is not None:
        click.echo(format_naming(named))
    if json_path is not None:
        figures = {"model": found.identity, "schedules": schedules, "responses": measured, "naming": named}
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(figures), indent=1))
    if plot is not None:
        draw(measured, found.name, plot, one_cell)
    return int(named is not None and not holds(measured, named))


@bench.command("coverage")
@click.option("--target", default="slots", show_default=True, help="As for `slotfuzz run`.")
@click.option("--model", default="tiny", show_default=True, help="As for `slotfuzz run`.")
@click.option("--schedules", multiple=True, type=Number(int, 1, 1e6), help="Repeatable.  [default: 500, 1000 and 3000]")
@click.option("--seed", type=Number(int, 0, 1e15), default=0, show_default=True, help="Same seed, same schedules.")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def bench_coverage(
    target: str, model: str, schedules: tuple[int, ...], seed: int, sets: tuple[str, ...], json_path: Path | None
) -> None:
    """Which runs of life-cycle events schedules bring about, of those that are feasible; nothing is judged."""
    from fuzz.bench_coverage import format_measured, measured
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from targets.registry import TargetSpec, build

    set_threads()
    check_file(json_path)
    factory = build(TargetSpec(target, model))
    settings = read_settings(factory.knobs, sets, {})
    found = []
    for one in measured(factory, tuple(sorted(set(schedules))) or (500, 1000, 3000), seed, settings):
        found.append(one)
        click.echo(format_measured(one))
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(found), indent=1))


@bench.command("rounding")
@click.option("--target", required=True, help="A real engine.")
@click.option("--seed", type=Number(int, 0, 1e15), default=0, show_default=True, help="Of the prompts.")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--python", type=click.Path(path_type=Path), help="Play the target in this interpreter, which has the engine.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every way as JSON.")
def bench_rounding(target: str, seed: int, sets: tuple[str, ...], python: Path | None, json_path: Path | None) -> None:
    """How far an engine's log-probabilities move where only the arithmetic does: alone, beside copies, each knob."""
    from fuzz.engine_rounding import bound, measured
    from fuzz.judge import Judge
    from fuzz.repro import write_atomically
    from fuzz.run import set_threads
    from fuzz.worker import stage_for
    from targets.adapters import ADAPTERS
    from targets.registry import TargetSpec, build

    check_file(json_path)
    if target not in ADAPTERS:
        raise bad("--target", "one of " + ", ".join(ADAPTERS), target)
    check_python(python, here=False)
    set_threads()
    spec = TargetSpec(target)
    factory = build(spec, here=python is None)
    settings = read_settings(factory.knobs, sets, {})
    judge = Judge(factory, stage_for(spec, factory, python=python))
    ways = []
    try:
        for way in measured(judge, seed, settings):
            ways.append(way)
            told = f"{way.otherwise} chosen otherwise, by {way.regret:.3g} at most"
            broken = f", {way.broken} plays broke off" if way.broken else ""
            click.echo(f"{way.way:<34} {way.tokens:6} tokens  {way.largest:.3g}  {told if way.otherwise else ''}{broken}")
    finally:
        judge.stage.close()
    click.echo(f"{sum(way.tokens for way in ways)} tokens; a bound on logits: {bound(ways):.3g}")
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(ways), indent=1))


@bench.command("decoder")
@click.option("--model", "models", multiple=True, help="Only this model; may be repeated.  [default: tiny and random-50m]")
@click.option("--only", "only", multiple=True, help="Only this part; may be repeated.  [default: all, see the output]")
@click.option("--seconds", type=Number(float, 0.1, 1e5), default=12.0, show_default=True, help="For each part and model.")
@click.option("--threads", type=Number(int, 1, 1024), default=1, show_default=True, help="Threads of torch.")
@click.option("--clock", default="cpu", show_default=True, help="Time by the processor (cpu) or on the wall (wall).")
@click.option("--quick", is_flag=True, help="As little as shows that every part runs; nothing is judged by it.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every round as JSON.")
def bench_decoder(
    models: tuple[str, ...],
    only: tuple[str, ...],
    seconds: float,
    threads: int,
    clock: str,
    quick: bool,
    json_path: Path | None,
) -> int:
    """The built-in decoder: tokens a second, beside others, where a step goes, padding; 1 if it is slower than asked."""
    import torch

    from fuzz.bench_decoder import MODELS, PARTS, Figures, factories, measured
    from fuzz.decoder_bench.claims import claims
    from fuzz.decoder_bench.measure import CLOCKS, Effort
    from fuzz.decoder_bench.tables import format_claims, format_table
    from fuzz.repro import write_atomically

    check_file(json_path)
    for part in only:
        if part not in PARTS:
            raise bad("--only", "one of " + ", ".join(PARTS), part)
    if clock not in CLOCKS:
        raise bad("--clock", "one of " + ", ".join(CLOCKS), clock)
    torch.set_num_threads(threads)
    effort = Effort(0.0, 1, 1, small=True, clock=clock) if quick else Effort(seconds, clock=clock)
    click.echo(f"{threads} thread{'s' if threads > 1 else ''}, float32, seconds of {clock} time")
    figures = []
    for name in dict.fromkeys(models or MODELS):
        tables, factory_of = [], factories(name)
        for table in measured(factory_of, name, only or PARTS, effort):
            tables.append(table)
            click.echo(format_table(table) + "\n")
        judged = claims(tables)
        click.echo(format_claims(name, judged) + "\n")
        figures.append(Figures(name, factory_of("slots").identity, threads, clock, tuple(tables), tuple(judged)))
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(figures), indent=1))
    return int(not quick and not all(table.holds for figure in figures for table in figure.tables))
