"""The command line of this floor: `slotfuzz serve`, `slotfuzz stress`. Only click is imported before a command runs."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from fuzz.commandline import Number, bad, read_settings

KEY_CHARS_MIN = 8


@click.command()
@click.option("--target", default="slots", show_default=True, help="A target's name, or package.module:factory.")
@click.option("--model", help="A tiny model's name, random-50m, gemma3-270m, a folder, or a GGUF file.  [default: tiny]")
@click.option("--fault", "faults", multiple=True, help="Plant a bug (see `slotfuzz faults`); may be repeated.")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--dtype", help="float64 (default), float32, bfloat16 or float16.")
@click.option("--device", help="cpu (default) or cuda.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=Number(int, 0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="Serve only who sends the key in this file.")
@click.option(
    "--queue-max", type=Number(int, 1, 1e6), default=256, show_default=True, help="Requests that may wait for a slot."
)
@click.option(
    "--deadline-seconds", type=Number(float, 0.001, 86_400), default=600, show_default=True, help="For each request."
)
@click.option(
    "--body-bytes-max", type=Number(int, 1, 1e9), default=4_000_000, show_default=True, help="Longer bodies are refused."
)
@click.option(
    "--grace-seconds",
    type=Number(float, 0, 86_400),
    default=10,
    show_default=True,
    help="For requests to end at a shutdown.",
)
@click.option(
    "--record", type=click.Path(path_type=Path), help="Write down what the target is asked, for `slotfuzz verify`."
)
def serve(
    target: str,
    model: str | None,
    faults: tuple[str, ...],
    sets: tuple[str, ...],
    dtype: str | None,
    device: str | None,
    host: str,
    port: int,
    api_key_file: Path | None,
    queue_max: int,
    deadline_seconds: float,
    body_bytes_max: int,
    grace_seconds: float,
    record: Path | None,
) -> int:
    """Serve a target to clients of OpenAI's API, until it is told to end (SIGINT or SIGTERM)."""
    try:
        from stress.endpoint.app import Bounds
        from stress.endpoint.server import Serving, serve_forever
    except ImportError as error:
        raise bad("slotfuzz serve", "installed (pip install 'slotfuzz[stress]')", f"no {error.name}") from error
    import torch

    from stress.recording.account import recorded
    from targets.registry import TargetSpec, build, default_model

    torch.set_num_threads(1)  # as when it is fuzzed: the order of a sum must not depend on how many cores are free
    spec = TargetSpec(target, default_model(faults) if model is None else model, faults)
    factory = build(spec)
    settings = read_settings(factory.knobs, sets, {"dtype": dtype, "device": device})
    api_key = None if api_key_file is None else read_key(api_key_file)
    with contextlib.nullcontext(factory) if record is None else recorded(factory, record) as served:
        return serve_forever(
            Serving(
                spec=spec,
                factory=served,
                settings=settings,
                host=host,
                port=port,
                api_key=api_key,
                queue_max=queue_max,
                bounds=Bounds(deadline_s=deadline_seconds, body_bytes_max=body_bytes_max),
                grace_s=grace_seconds,
            )
        )


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def stress(words: tuple[str, ...]) -> None:
    """Load an endpoint and have every answer judged: starts locust, whose options it takes (--help lists them)."""
    if find_spec("locust") is None:
        raise bad("slotfuzz stress", "installed (pip install 'slotfuzz[stress]')", "no locust")
    locustfile = Path(__file__).with_name("locustfile.py")
    os.execv(sys.executable, [sys.executable, "-m", "locust", "-f", str(locustfile), *words])


def read_key(path: Path) -> str:
    """The key in a file, without what is blank around it."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise bad("--api-key-file", "a file of ASCII that can be read", path) from error
    if len(key) < KEY_CHARS_MIN or any(char.isspace() for char in key):
        raise bad("--api-key-file", f"a file with one key of {KEY_CHARS_MIN} characters or more", path)
    return key
