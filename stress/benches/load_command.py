"""`slotfuzz bench verification`, `load-faults`, `soak` and `rival`. Only click is imported before one runs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from fuzz.commandline import Number, check_file, check_folder
from stress.benches.command import CLIENTS, EACH, JSON, PASSED_ON, SLOTS, TOKENS, WORDS, write

OUT = "slotfuzz-out/{}/%Y%m%d-%H%M%S"
SEED = click.option("--seed", type=Number(int, 0, 1e9 - 1), default=1, show_default=True)


@click.command("verification", context_settings=PASSED_ON)
@click.option("--users", type=Number(int, 1, 4096), default=64, show_default=True)
@click.option("--seconds", type=Number(float, 1, 3600), default=20, show_default=True, help="Of each load.")
@click.option("--rounds", type=Number(int, 1, 1000), default=10, show_default=True, help="Loads of each kind.")
@SEED
@JSON
@WORDS
def bench_verification(
    users: int, seconds: float, rounds: int, seed: int, json_path: Path | None, words: tuple[str, ...]
) -> None:
    """A load that nobody judges, one judged afterwards, one judged beside it; other options are `slotfuzz serve`'s."""
    from stress.benches.verification import format_verification, measure

    check_file(json_path)
    found = measure(users, seconds, rounds, seed, words, click.echo)
    click.echo(format_verification(found))
    write(json_path, found)


@click.command("load-faults")
@click.option("--fault", "faults", multiple=True, help="Only this one; may be repeated.  [default: ten]")
@click.option("--users", type=Number(int, 1, 4096), default=64, show_default=True)
@click.option("--seconds", type=Number(float, 1, 60), default=20, show_default=True, help="Of load for each fault.")
@SEED
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: slotfuzz-out/load-faults/<time>]")
@JSON
def bench_load_faults(
    faults: tuple[str, ...], users: int, seconds: float, seed: int, out: Path | None, json_path: Path | None
) -> int:
    """Servers with a bug planted in them, loaded and judged. 1 unless all are flagged, and four fifths have a repro."""
    from stress.benches.load_faults import TEN, format_table, load_faults

    check_file(json_path)
    folder = Path(time.strftime(OUT.format("load-faults"))) if out is None else out
    check_folder(folder)
    table = load_faults(faults or TEN, users, seconds, seed, folder, click.echo)
    click.echo(format_table(table))
    write(json_path, table)
    return 0 if table.enough else 1


@click.command("soak", context_settings=PASSED_ON)
@click.option("--users", type=Number(int, 1, 4096), default=16, show_default=True)
@click.option("--seconds", type=Number(float, 1, 7 * 86_400), default=3600, show_default=True)
@click.option("--period", type=Number(float, 4, 86_400), default=60, show_default=True, help="Seconds; half of it is quiet.")
@SEED
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: slotfuzz-out/soak/<time>]")
@WORDS
def bench_soak(users: int, seconds: float, period: float, seed: int, out: Path | None, words: tuple[str, ...]) -> int:
    """A load that comes and goes, judged beside; other options are `slotfuzz serve`'s. 1 if anything is wrong or kept."""
    from stress.benches.soak import format_soak, is_clean, soak

    folder = Path(time.strftime(OUT.format("soak"))) if out is None else out
    check_folder(folder)
    run = soak(seconds, users, period, seed, folder, words)
    click.echo(format_soak(run))
    return 0 if is_clean(run) else 1


@click.command("rival")
@click.option("--python", required=True, help="An interpreter that has transformers[serving].")
@click.option("--model", default="tiny", show_default=True, help="A model that `slotfuzz serve` has by name.")
@click.option("--dtype", default="float32", show_default=True)
@SLOTS
@CLIENTS
@EACH
@TOKENS
@click.option("--rounds", type=Number(int, 1, 1000), default=5, show_default=True)
@SEED
@JSON
def bench_rival(
    python: str,
    model: str,
    dtype: str,
    slots: int,
    clients: int,
    each: int,
    tokens: int,
    rounds: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """`transformers serve` with continuous batching beside `slotfuzz serve`, on the same weights and the same load."""
    from stress.benches.rival import Load, compare, format_rivals

    check_file(json_path)
    load = Load(model=model, dtype=dtype, slots=slots, clients=clients, each=each, tokens=tokens, rounds=rounds, seed=seed)
    found = compare(load, python)
    click.echo(format_rivals(found))
    write(json_path, found)
