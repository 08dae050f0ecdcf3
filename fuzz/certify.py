"""`slotfuzz certify`: a campaign with a budget that ends in a certificate, as JSON and as a page."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
import msgspec

from fuzz.commandline import Number, bad, check_folder, read_settings


@click.command()
@click.option("--target", default="slots", show_default=True, help="A target's name, or package.module:factory.")
@click.option("--model", default="tiny", show_default=True, help="As for `slotfuzz run`.")
@click.option("--seconds", type=Number(float, 0.001, 1e9), default=600, show_default=True, help="The budget.")
@click.option("--workers", type=Number(int, 1, 1024), default=1, show_default=True, help="Processes that fuzz.")
@click.option("--seed", type=Number(int, 0, 1e15), help="Same seed, same schedules.  [default: random]")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--dtype", help="float64 (default), float32, bfloat16 or float16.")
@click.option("--device", help="cpu (default) or cuda.")
@click.option("--sanitize", is_flag=True, help="Check every cell that a request attends to, and what lies in the others.")
@click.option("--in-a-row", type=Number(int, 1, 1000), help="So many schedules one after another on each target.")
@click.option(
    "--dose-schedules",
    type=Number(int, 0, 1e4),
    default=16,
    show_default=True,
    help="For each size of leak; 0 leaves the sizes out.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("slotfuzz-certificate"), show_default=True)
def certify(
    target: str,
    model: str,
    seconds: float,
    workers: int,
    seed: int | None,
    sets: tuple[str, ...],
    dtype: str | None,
    device: str | None,
    sanitize: bool,
    in_a_row: int | None,
    dose_schedules: int,
    out: Path,
) -> int:
    """Fuzz a target for a while and certify what that showed, what it did not, and how small a leak would have been seen."""
    from fuzz.campaign.command import run_campaign
    from fuzz.campaign.folder import Folder
    from fuzz.certificate import certificate, certificate_page
    from fuzz.judge import Judge
    from fuzz.pages.campaign import read_state
    from fuzz.repro import write_atomically
    from fuzz.run import Run, console, set_threads
    from fuzz.search import Limits
    from targets.registry import TargetSpec, build

    set_threads()
    spec = TargetSpec(target, model)
    factory = build(spec)
    if sanitize and not factory.control.tags:
        raise bad("--sanitize", "left out for a target that keeps no shadow tags", target)
    flags = {"dtype": dtype, "device": device, "sanitize": str(True) if sanitize else None}
    settings = read_settings(factory.knobs, sets, flags)
    check_folder(out)
    drawn = secrets.randbelow(2**32) if seed is None else seed
    asked = Run(spec, factory, settings, drawn, Limits(None, seconds), out, None, console(), in_a_row=in_a_row)
    code = run_campaign(asked, workers, resume=True, seed=seed)
    if code == 130:
        return code
    made = certificate(read_state(Folder(out)), factory, Judge(factory).reference(settings), dose_schedules)
    write_atomically(out / "certificate.json", msgspec.json.format(msgspec.json.encode(made), indent=1))
    write_atomically(out / "certificate.html", certificate_page(made).encode())
    asked.console.print(f"certificate: {out / 'certificate.html'}, {out / 'certificate.json'}", markup=False)
    return code
