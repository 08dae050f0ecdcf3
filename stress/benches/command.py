"""`slotfuzz bench http` and `slotfuzz bench siege`. Only click is imported before one runs."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from fuzz.commandline import Number, check_file, read_settings

JSON = click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures as JSON.")
SLOTS = click.option("--slots", type=Number(int, 1, 1024), default=16, show_default=True)
CLIENTS = click.option("--clients", type=Number(int, 1, 4096), default=32, show_default=True)
EACH = click.option("--each", type=Number(int, 1, 10_000), default=4, show_default=True, help="Requests of a client.")
TOKENS = click.option("--tokens", type=Number(int, 1, 10_000), default=32, show_default=True, help="Of an answer.")
WORDS = click.argument("words", nargs=-1, type=click.UNPROCESSED)
PASSED_ON = {"ignore_unknown_options": True}


@click.command("http")
@click.option("--target", default="slots", show_default=True, help="A target's name.")
@click.option("--model", default="tiny", show_default=True, help="As for `slotfuzz serve`.")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob.")
@click.option("--dtype", default="float32", show_default=True)
@SLOTS
@CLIENTS
@EACH
@TOKENS
@click.option("--rounds", type=Number(int, 1, 1000), default=3, show_default=True)
@click.option("--seed", type=Number(int, 0, 1e15), default=0, show_default=True)
@JSON
def bench_http(
    target: str,
    model: str,
    sets: tuple[str, ...],
    dtype: str,
    slots: int,
    clients: int,
    each: int,
    tokens: int,
    rounds: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Streams through HTTP against the same requests in process, by the processor's time."""
    from stress.benches.http import Bench, format_costs, measure
    from targets.registry import TargetSpec, build

    check_file(json_path)
    spec = TargetSpec(target, model, ())
    settings = read_settings(build(spec).knobs, sets, {"dtype": dtype})
    bench = Bench(
        spec=spec,
        settings=settings,
        slots=slots,
        clients=clients,
        each=each,
        tokens=tokens,
        rounds=rounds,
        seed=seed,
    )
    costs = measure(bench)
    click.echo(format_costs(costs))
    write(json_path, costs)


@click.command("siege", context_settings=PASSED_ON)
@click.option("--scale", type=Number(float, 0.001, 100), default=1, show_default=True, help="1 is 1,000 who vanish.")
@click.option("--seed", type=Number(int, 0, 1e15), default=0, show_default=True)
@JSON
@click.option("--attack", "only", multiple=True, help="Only this one; may be repeated.  [default: all]")
@WORDS
def bench_siege(scale: float, seed: int, json_path: Path | None, only: tuple[str, ...], words: tuple[str, ...]) -> int:
    """Hostile clients against a server of its own; other options are those of `slotfuzz serve`. 1 if anything is wrong."""
    from stress.benches.siege import format_siege, lay_siege

    check_file(json_path)
    siege = lay_siege(words, scale, seed, only)
    click.echo(format_siege(siege))
    write(json_path, siege)
    return 0 if siege.repelled else 1


def write(path: Path | None, figures: msgspec.Struct) -> None:
    """Writes figures as JSON, if they are wanted."""
    from fuzz.repro import write_atomically

    if path is not None:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(figures), indent=1))
