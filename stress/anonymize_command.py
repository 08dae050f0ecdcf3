"""The command `slotfuzz anonymize`. Only click is imported before it runs."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from fuzz.commandline import Number, check_folder

UNDECIDED = 3


@click.command()
@click.argument("path", metavar="REPRO", type=click.Path(path_type=Path))
@click.option("--target", "own", help="The package.module:factory that the repro may import.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder for the new repro.  [default: that of REPRO]")
@click.option(
    "--seed", type=Number(int, 0, 1e15), help="Of the bijection; whoever knows it can take it back.  [default: drawn]"
)
def anonymize(path: Path, own: str | None, out: Path | None, seed: int | None) -> int:
    """Exchange a repro's tokens for others, so that it can be shown to strangers, and check that it still fails."""
    from fuzz import repro as repros
    from fuzz.conductor import run_trio
    from fuzz.replaying import Replayer
    from fuzz.report import replay_of
    from fuzz.run import set_threads
    from stress.recording.anonymous import TRIES, anonymous
    from stress.recording.repros import confirmed

    set_threads()
    folder = path.absolute().parent if out is None else out
    check_folder(folder)
    replayer = Replayer(own)
    try:
        repro, factory = replayer.open(path)
        judge = replayer.judge(repro.target, factory)
        found = run_trio(anonymous, repro, factory, judge, secrets.randbits(63) if seed is None else seed)
    finally:
        replayer.close()
    if found is None:
        click.echo(f"undecided: under none of {TRIES} bijections does it fail in the same way")
        return UNDECIDED
    written = repros.save(found, folder)
    if not confirmed(written, found):
        written.unlink()
        click.echo("undecided: with other tokens it fails here, and not in a fresh process")
        return UNDECIDED
    click.echo(f"{written}: fails in the same way, also in a fresh process")
    click.echo(f"it names the model {found.identity} and the target {found.target.target}; look at both before you show it")
    click.echo(f"next: {replay_of(found, written)}")
    return 0
