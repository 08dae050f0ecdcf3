"""The command line: `slotfuzz`, or `python -m fuzz`.

Exit codes: 0 nothing wrong; 1 something found; 2 bad use or bad input; 3 undecided.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import click
import msgspec

from fuzz.benches import bench
from fuzz.certify import certify
from fuzz.commandline import Number, Root, bad, check_file, check_folder, check_python, limit_memory, read_settings
from fuzz.passphrase.command import passphrase
from fuzz.releases.command import bisect


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="slotfuzz")
def main() -> None:
    """Does any request's answer depend on who else was in the machine?"""


main.add_command(bench)
main.add_command(bisect)
main.add_command(certify)
main.add_command(passphrase)


@main.command()
@click.option("--target", default="slots", show_default=True, help="A target's name, or package.module:factory.")
@click.option("--model", help="A tiny model's name, random-50m, gemma3-270m, a folder, or a GGUF file.  [default: tiny]")
@click.option("--fault", "faults", multiple=True, help="Plant a bug (see `slotfuzz faults`); may be repeated.")
@click.option("--schedules", type=Number(int, 1, 1e9), help="Stop after so many schedules.  [default: 1000]")
@click.option("--seconds", type=Number(float, 0.001, 1e9), help="Stop after so many seconds.")
@click.option("--seed", type=Number(int, 0, 1e15), help="Same seed, same schedules.  [default: random]")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--dtype", help="float64 (default), float32, bfloat16 or float16.")
@click.option("--device", help="cpu (default) or cuda.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("slotfuzz-out"), show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the totals and findings as JSON.")
@click.option("--in-process", is_flag=True, help="Play your own target in this process, as for breakpoints.")
@click.option(
    "--hang-seconds", type=Number(float, 0.1, 1e6), help="Your own target hangs once silent so long.  [default: 5]"
)
@click.option("--memory-gib", type=Number(float, 0.5, 1e6), help="No process may have more: a target that wants it fails.")
@click.option("--sanitize", is_flag=True, help="Check every cell that a request attends to, and what lies in the others.")
@click.option("--in-a-row", type=Number(int, 1, 1000), help="So many schedules one after another on each target.")
@click.option("--workers", type=Number(int, 1, 1024), help="A campaign: so many processes, in a folder that it keeps.")
@click.option("--ray", metavar="ADDRESS", help="Workers on a Ray cluster: `auto`, an address, or `local` to start one here.")
@click.option("--cpus-each", type=Number(float, 0, 1024), default=1, show_default=True, help="With --ray: of a worker.")
@click.option("--gpus-each", type=Number(float, 0, 64), help="With --ray: of a worker.  [default: 1 with --device cuda]")
@click.option("--resume", is_flag=True, help="Go on with the campaign in --out, or begin one: other schedules each time.")
@click.option("--python", type=click.Path(path_type=Path), help="Play the target in this interpreter, which has the engine.")
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
    memory_gib: float | None,
    sanitize: bool,
    in_a_row: int | None,
    workers: int | None,
    ray: str | None,
    cpus_each: float,
    gpus_each: float | None,
    resume: bool,
    python: Path | None,
) -> int:
    """Fuzz a target: generate schedules, replay, judge, shrink and keep what fails."""
    from fuzz.run import Run, console, set_threads
    from fuzz.run import run as run_search
    from fuzz.search import Limits
    from fuzz.worker import Patience
    from targets.registry import TARGETS, TargetSpec, build, default_model

    set_threads()
    check_python(python, target in TARGETS or in_process or workers is not None or resume)
    spec = TargetSpec(target, default_model(faults) if model is None else model, faults)
    factory = build(spec, here=python is None)
    if sanitize and not factory.control.tags:
        raise bad("--sanitize", "left out for a target that keeps no shadow tags", target)
    if hang_seconds is not None and (in_process or target in TARGETS):
        raise bad("--hang-seconds", "left out for a target that is played in this process", f"{hang_seconds:g}")
    flags = {"dtype": dtype, "device": device, "sanitize": str(True) if sanitize else None}
    settings = read_settings(factory.knobs, sets, flags)
    check_file(json_path)
    check_folder(out)
    if ray is not None and (workers is None or memory_gib is not None):
        raise bad("--ray", "left out without --workers, and with --memory-gib", ray)
    limit_memory(memory_gib)
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
        python=python,
        in_a_row=in_a_row,
    )
    if workers is None and not resume:
        return run_search(asked)
    from fuzz.campaign.command import run_campaign

    if ray is None:
        return run_campaign(asked, workers or 1, resume, seed)
    from fuzz.campaign.far import join

    gpus = float(settings.get("device") == "cuda") if gpus_each is None else gpus_each
    asked.ray = ("--ray", ray, "--cpus-each", f"{cpus_each:g}", "--gpus-each", f"{gpus:g}")
    cluster = join(ray, workers or 1, cpus_each, gpus)
    try:
        return run_campaign(asked, workers or 1, resume, seed, cluster.hire)
    finally:
        cluster.close()


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="REPRO…", type=click.Path(path_type=Path))
@click.option("--target", "own", help="The package.module:factory that the repros may import.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the outcomes as JSON.")
@click.option("--in-process", is_flag=True, help="Play your own target in this process, as for breakpoints.")
@click.option("--memory-gib", type=Number(float, 0.5, 1e6), help="No process may have more: a target that wants it fails.")
@click.option("--python", type=click.Path(path_type=Path), help="Play the target in this interpreter, which has the engine.")
@click.option(
    "--hang-seconds", type=Number(float, 0.1, 1e6), help="Your own target hangs once silent so long.  [default: 5]"
)
def replay(
    paths: tuple[Path, ...],
    own: str | None,
    json_path: Path | None,
    in_process: bool,
    hang_seconds: float | None,
    memory_gib: float | None,
    python: Path | None,
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
    check_file(json_path)
    limit_memory(memory_gib)
    replayer = Replayer(own, in_process, Patience(hang_seconds), python)
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
        if one.dispute:
            click.echo("    its answer is not the isolated one all the same:")
            click.echo("\n".join("    " + line for line in one.dispute))
        for why in one.undecided:
            click.echo(f"    no proof that it is gone: {why}")
    replayer.close()
    if json_path is not None:
        write_atomically(json_path, msgspec.json.format(msgspec.json.encode(replayed), indent=1))
    outcomes = {one.outcome for one in replayed}
    return 2 if Outcome.ERROR in outcomes else 1 if Outcome.FAILED in outcomes else 0


@main.command()
@click.argument("path", metavar="REPRO", type=click.Path(path_type=Path))
@click.option("--target", "own", help="The package.module:factory that the repro may import.")
@click.option("--html", type=click.Path(path_type=Path), help="Write it as a page as well: one file that opens offline.")
@click.option(
    "--script", type=click.Path(path_type=Path), help="Write a program of its own that shows it, of a real engine."
)
def explain(path: Path, own: str | None, html: Path | None, script: Path | None) -> int:
    """Explain a stored failure: what proves it, where it began, and what it probably is."""
    check_file(html, "--html")
    from fuzz.conductor import run_trio
    from fuzz.explain import fixed, study, told
    from fuzz.replaying import Replayer
    from fuzz.run import set_threads

    set_threads()
    if script is not None:
        from fuzz import repro as repros
        from fuzz.script import write

        check_file(script, "--script")
        model = write(repros.load(path), script)
        click.echo(f"next: python {script} {model}")
        return 0
    replayer = Replayer(own)
    repro, factory = replayer.open(path)
    try:
        studied = run_trio(study, replayer.judge(repro.target, factory), repro)
    finally:
        replayer.close()
    click.echo(fixed(repro, path) if studied is None else told(studied, path))
    if studied is not None and html is not None:
        from fuzz.pages.failure import failure_page
        from fuzz.repro import write_atomically

        write_atomically(html, failure_page(studied, path).encode())
        click.echo(f"page: {html}")
    return 1 if studied is None else 0


@main.command()
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The page to write.  [default: report.html in OUT]")
@click.option("--junit", "junit_path", type=click.Path(path_type=Path), help="Write JUnit's XML: a test for each signature.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write a summary in Markdown.")
def report(out: Path, html: Path | None, junit_path: Path | None, markdown_path: Path | None) -> int:
    """Write the page of a campaign, also while it runs: OUT is what `run --workers` was given as --out.

    Exits as its last session did: 0 nothing wrong, 1 something found, 3 undecided.
    """
    from fuzz.campaign.folder import Folder
    from fuzz.pages.campaign import write_page
    from fuzz.pages.summaries import COLOURS, junit, markdown
    from fuzz.report import EXIT_CODES
    from fuzz.repro import write_atomically

    for option, path in (("--html", html), ("--junit", junit_path), ("--markdown", markdown_path)):
        check_file(path, option)
    folder = Folder(out)
    campaign = folder.begun()
    if campaign is None or not campaign.sessions:
        raise bad("OUT", "the folder of a campaign", out)
    page = html or out / "report.html"
    state = write_page(folder, page)
    if junit_path is not None:
        write_atomically(junit_path, junit(state))
    if markdown_path is not None:
        write_atomically(markdown_path, markdown(state).encode())
    click.echo(f"{COLOURS[state.verdict]}\npage: {page}")
    return EXIT_CODES[state.verdict]


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
    """List the targets, their knobs, what each lets us control, and for real engines whether they are installed."""
    from targets.adapters import ADAPTERS
    from targets.registry import TARGETS, TargetSpec, build

    rows = []
    for name, doc in [*TARGETS.items(), *((name, adapter.what) for name, adapter in ADAPTERS.items())]:
        factory = build(TargetSpec(name), here=False)
        installed = name not in ADAPTERS or not ADAPTERS[name].missing
        row = {"name": name, "installed": installed, "what": doc, "control": factory.control, "knobs": factory.knobs}
        rows.append(row if installed else {**row, "install": ADAPTERS[name].install})
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1))
        return
    for row in rows:
        factory = build(TargetSpec(str(row["name"])), here=False)
        control = msgspec.structs.asdict(factory.control)
        state = "installed" if row["installed"] else f"not installed: {row['install']}"
        click.echo(f"{row['name']}  {state}\n  {row['what']}")
        click.echo("  control: " + ", ".join(name for name, value in control.items() if value))
        for knob in factory.knobs:
            allowed = f"{knob.low}..{knob.high}" if knob.low is not None else " ".join(map(str, knob.values))
            unit = f" {knob.unit}" if knob.unit else ""
            when = "" if knob.build_time else "  between requests"
            click.echo(f"  {knob.name} = {knob.default}{unit}  ({allowed}){when}  {knob.doc}")


if __name__ == "__main__":
    main(prog_name="slotfuzz")
