"""The command `slotfuzz verify`. Only click is imported before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzz.commandline import Number, bad
from stress.command import read_key

if TYPE_CHECKING:
    from stress.wording import Dialect


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--target", help="What was served, by name, or package.module:factory.  [default: what it said of itself, else slots]"
)
@click.option("--model", help="The reference, as for `slotfuzz serve`.  [default: as --target]")
@click.option("--fault", "faults", multiple=True, help="A bug planted in it; may be repeated.  [default: as --target]")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="A knob of it.  [default: as --target]")
@click.option("--dtype", help="Of what was served: float64 (default), float32, bfloat16 or float16.")
@click.option("--device", help="cpu (default) or cuda.")
@click.option("--foreign", is_flag=True, help="Something else than `slotfuzz serve` was asked.")
@click.option(
    "--endpoint",
    "url",
    help="Asked again for what is wrong; without --model, the judge.",
)
@click.option("--idle", "answers", type=click.Path(path_type=Path), help="The file of these.  [default: FOLDER/idle.jsonl]")
@click.option("--dialect", help="The fields it is asked with: slotfuzz, vllm or openai.  [default: as in the load]")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="A file with the key to send it.")
@click.option("--workers", type=Number(int, 0, 64), default=1, show_default=True, help="Judge processes; 0: in this one.")
@click.option("--follow", is_flag=True, help="Judge while the load runs; SIGINT or SIGTERM says that it is over.")
@click.option(
    "--quiet-seconds",
    type=Number(float, 0.1, 86_400),
    default=30,
    show_default=True,
    help="With --follow: or such a silence.",
)
@click.option(
    "--record",
    "account",
    type=click.Path(path_type=Path),
    help="What `slotfuzz serve --record` wrote.  [default: FOLDER/account.jsonl, if there]",
)
@click.option(
    "--repros",
    "repros_max",
    type=Number(int, 0, 1000),
    default=3,
    show_default=True,
    help="So many bugs are made repros of.",
)
def verify(
    folder: Path,
    target: str | None,
    model: str | None,
    faults: tuple[str, ...],
    sets: tuple[str, ...],
    dtype: str | None,
    device: str | None,
    foreign: bool,
    url: str | None,
    answers: Path | None,
    dialect: str | None,
    api_key_file: Path | None,
    workers: int,
    follow: bool,
    quiet_seconds: float,
    account: Path | None,
    repros_max: int,
) -> int:
    """Judge every response of a load run, and make repros of what is wrong."""
    if url is not None and model is None and not faults:
        return _by_itself(folder, url, answers, dialect, api_key_file, follow, quiet_seconds)
    try:
        from stress.judging.asked import Verifying
        from stress.judging.loaded import Named, read_loaded, settings_of, spec_of
        from stress.verifying import verify as verify_folder
    except ImportError as error:
        raise bad("slotfuzz verify", "installed (pip install 'slotfuzz[stress]')", f"no {error.name}") from error
    import torch

    from fuzz.report import EXIT_CODES
    from targets.registry import build

    torch.set_num_threads(1)
    loaded, user = read_loaded(folder), Named(target, model, faults)
    spec = spec_of(user, loaded.served)
    factory = build(spec)
    settings = settings_of(user, loaded.served, factory, sets, {"dtype": dtype, "device": device})
    if account is None and (folder / "account.jsonl").is_file():
        account = folder / "account.jsonl"
    asked = Verifying(
        folder=folder,
        url=url,
        dialect=known_dialect(dialect) or loaded.dialect,
        api_key=None if api_key_file is None else read_key(api_key_file),
        spec=spec,
        factory=factory,
        settings=settings,
        workers=workers,
        follow=follow,
        quiet_s=quiet_seconds,
        account=account,
        foreign=foreign,
        repros_max=repros_max,
    )
    return EXIT_CODES[verify_folder(asked).worst]


def _by_itself(
    folder: Path,
    url: str,
    answers: Path | None,
    dialect: str | None,
    api_key_file: Path | None,
    follow: bool,
    quiet_s: float,
) -> int:
    """Judges by the endpoint's own answers."""
    try:
        from stress.idling import Idling, verify_idle
        from stress.judging.loaded import read_loaded
    except ImportError as error:
        raise bad("slotfuzz verify", "installed (pip install 'slotfuzz[stress]')", f"no {error.name}") from error
    from fuzz.report import EXIT_CODES

    asked = Idling(
        folder=folder,
        url=url,
        answers=answers or folder / "idle.jsonl",
        api_key=None if api_key_file is None else read_key(api_key_file),
        dialect=known_dialect(dialect) or read_loaded(folder).dialect,
        follow=follow,
        quiet_s=quiet_s,
    )
    return EXIT_CODES[verify_idle(asked).worst]


def known_dialect(name: str | None) -> Dialect | None:
    """A dialect by its name."""
    from stress.wording import DIALECTS

    found = next((each for each in DIALECTS if each == name), None)
    if name is not None and found is None:
        raise bad("--dialect", "one of " + ", ".join(DIALECTS), name)
    return found
