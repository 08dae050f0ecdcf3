"""What the commands share: how a user's mistake is said, numbers in a range, settings, files to write.

Nothing here imports torch before a command runs: `--help` should not wait for it.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

COMMANDS, BENCHES = "slotfuzz.commands", "slotfuzz.benches"
"""The entry-point groups in which the commands of higher floors are registered, and those under `bench`."""


def bad(name: str, rule: str, got: object, where: str = "") -> Exception:
    """A user's mistake. Imported late, as everything that brings torch."""
    from targets.protocol import BadInput

    return BadInput(name, rule, got, where)


class Group(click.Group):
    """Says a user's mistake in one sentence and exits with 2, without usage lines and without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command and exits with its code."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = 2
        except click.NoSuchOption as error:
            click.echo(f"option must be one that the command has (see --help), got {error.option_name}", err=True)
            code = 2
        except click.MissingParameter as error:
            name = "argument" if error.param is None else _name_of(error.param, error.ctx or click.Context(self))
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


def _name_of(parameter: click.Parameter, context: click.Context) -> str:
    """What one types: an option by its name, an argument by what stands for it."""
    return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.make_metavar(context)


class Root(Group):
    """The group of all commands: those of this floor, and those that higher floors register as entry points.

    Nothing here imports upwards: a command is looked up by name, and loaded only when it is asked for.
    """

    entry_points = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        return sorted({*super().list_commands(ctx), *entry_points(group=self.entry_points).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name; None where there is none."""
        own = super().get_command(ctx, cmd_name)
        if own is None:
            for found in entry_points(group=self.entry_points, name=cmd_name):
                command: click.Command = found.load()
                return command
        return own


class Benches(Root):
    """The group of all benches, found in the same way."""

    entry_points = BENCHES


class Number(click.ParamType[Any]):
    """A number in a range, refused in our own words."""

    name = "number"

    def __init__(self, kind: type[int] | type[float], low: float, high: float) -> None:
        self.kind = kind
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads what was typed; raises BadInput."""
        option = "number" if param is None else param.opts[0]
        rule = f"a {'whole ' if self.kind is int else ''}number in {_plain(self.low)}..{_plain(self.high)}"
        try:
            number = self.kind(value)
        except (TypeError, ValueError) as error:
            raise bad(option, rule, value) from error
        if not self.low <= number <= self.high:
            raise bad(option, rule, value)
        return number


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


def check_python(python: Path | None, here: bool) -> None:
    """Refuses an interpreter that is none, or that would not be used since the target is played here."""
    if python is None:
        return
    if here:
        raise bad("--python", "left out for a target that is played in this process, and with --workers", python)
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise bad("--python", "a Python interpreter", python)


def check_file(path: Path | None, option: str = "--json") -> None:
    """Refuses a file to write that can't be one, before any work is done."""
    if path is not None and ((path.exists() and not path.is_file()) or not path.absolute().parent.is_dir()):
        raise bad(option, "a plain file in a folder that exists", path)


def check_folder(path: Path, option: str = "--out") -> None:
    """Refuses a folder that can't be written or made, by doing it, and leaves everything as it was."""
    above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".slotfuzz-", dir=above))
    except OSError as error:
        raise bad(option, "a folder that can be written", path) from error


def limit_memory(gib: float | None) -> None:
    """Lets this process, and every one that it starts, have so much memory each: who wants more is told that there is none.

    What is only reserved, as CUDA does, does not count.
    """
    if gib is None:
        return
    most = int(gib * 2**30)
    _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
    if ceiling not in (resource.RLIM_INFINITY, -1) and most > ceiling:
        raise bad("--memory-gib", f"at most {ceiling / 2**30:g}, the limit of this process", gib)
    resource.setrlimit(resource.RLIMIT_DATA, (most, ceiling))


def memory_gib() -> float | None:
    """How much memory this process may have; None without a limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if most in (resource.RLIM_INFINITY, -1) else most / 2**30


def check_dtype(dtype: str) -> None:
    """Refuses what is no dtype."""
    from targets.models import DTYPES

    if dtype not in DTYPES:
        raise bad("--dtype", "one of " + ", ".join(DTYPES), dtype)


def read_settings(knobs: tuple[Any, ...], sets: tuple[str, ...], flags: dict[str, str | None]) -> dict[str, Any]:
    """Settings from --set and from the flags that stand for a knob."""
    from targets.protocol import among

    by_name = {knob.name: knob for knob in knobs}
    words = [(name, value, f"--{name}") for name, value in flags.items() if value is not None]
    for word in sets:
        name, separator, value = word.partition("=")
        if not separator:
            raise bad("--set", "KNOB=VALUE", word)
        words.append((name, value, "--set"))
    settings: dict[str, Any] = {}
    for name, text, where in words:
        if name not in by_name:
            raise bad("knob", among(by_name, name), name, where)
        if name in settings:
            raise bad("knob", "set once", name, where)
        settings[name] = by_name[name].parse(text, where)
    return settings
