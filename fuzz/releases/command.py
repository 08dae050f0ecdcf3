"""The command `slotfuzz bisect`. Only click is imported before it runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fuzz.commandline import Number, bad, check_file, check_folder

if TYPE_CHECKING:
    from fuzz.releases.trying import Release, Span
    from fuzz.repro import Repro

VERSIONS_MAX = 64


@click.command()
@click.argument("path", metavar="REPRO", type=click.Path(path_type=Path))
@click.option("--versions", required=True, metavar="A,B,C", help="Released versions of the engine, in any order.")
@click.option("--package", help="The distribution whose versions they are.  [default: the engine's own]")
@click.option("--target", "own", help="The package.module:factory that the repro may import.")
@click.option("--cache", type=click.Path(path_type=Path), help="Keeps environments.  [default: the user's cache folder]")
@click.option("--install-seconds", type=Number(float, 1, 86400), default=300, show_default=True, help="For each version.")
@click.option("--seconds", type=Number(float, 1, 86400), default=300, show_default=True, help="To judge each version.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the table as JSON.")
def bisect(
    path: Path,
    versions: str,
    package: str | None,
    own: str | None,
    cache: Path | None,
    install_seconds: float,
    seconds: float,
    json_path: Path | None,
) -> int:
    """Look for a stored failure in released versions of the engine, each in an environment of its own.

    Exit codes: 0 FIXED in all of them; 1 REPRODUCED in some; 3 in none, but some are UNDECIDED or could not run.
    """
    from fuzz import repro as repros
    from fuzz.releases.environments import Environments, NotInstalledError
    from fuzz.releases.trying import Release, Standing, attempt, exit_code, span
    from fuzz.run import set_threads
    from targets.protocol import BadInput

    named = _in_order(versions)
    check_file(json_path)
    repro = repros.load(path)
    distribution = package or _distribution(repro, path)
    if ":" in repro.target.target and own != repro.target.target:
        raise BadInput("--target", f"{repro.target.target} for this repro", own or "none", str(path))
    set_threads()
    folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slotfuzz" / "environments"
    check_folder(folder, "--cache")
    environments = Environments(folder.absolute(), distribution, install_seconds)
    click.echo(f"{repro.finding.kind}  {repro.finding.what}\n{distribution}, environments in {environments.folder}")
    releases = []
    with tempfile.TemporaryDirectory(prefix="slotfuzz-") as scratch:
        for version in named:
            try:
                python = environments.python(version)
            except NotInstalledError as error:
                release = Release(version, Standing.COULD_NOT_RUN, f"not installed: {error}")
            else:
                release = attempt(repro, path, version, python, seconds, Path(scratch) / f"{version}.json")
            releases.append(release)
            click.echo(_row(release))
    found = span(releases)
    click.echo(_told(found))
    if json_path is not None:
        data = {"repro": str(path), "package": distribution, "versions": releases, **msgspec.structs.asdict(found)}
        repros.write_atomically(json_path, msgspec.json.format(msgspec.json.encode(data), indent=1))
    return exit_code(releases)


def _in_order(versions: str) -> list[str]:
    """The versions as they are written, from the oldest to the newest, each once."""
    from packaging.version import InvalidVersion, Version

    words = list(dict.fromkeys(word.strip() for word in versions.split(",") if word.strip()))
    if not 1 <= len(words) <= VERSIONS_MAX:
        raise bad("--versions", f"1..{VERSIONS_MAX} versions with commas between", versions)
    for word in words:
        try:
            Version(word)
        except InvalidVersion as error:
            raise bad("--versions", "released versions with commas between, as 5.23.0,5.24.0", word) from error
    return sorted(words, key=Version)


def _distribution(repro: Repro, path: Path) -> str:
    """The one whose versions matter most to a real engine."""
    from targets.adapters import ADAPTERS

    adapter = ADAPTERS.get(repro.target.target)
    if adapter is None or not adapter.packages:
        rule = "given for a target that is no real engine with released versions"
        raise bad("--package", rule, "nothing", f"{repro.target.target}, {path}")
    return adapter.packages[0]


def _row(release: Release) -> str:
    bits = "  (bit for bit)" if release.same_bits else ""
    return f"  {release.version:<16} {release.standing:<14} {release.seconds:5.1f} s{bits}  {release.why}".rstrip()


def _told(found: Span) -> str:
    """The end of the table in sentences."""
    if found.first_bad is None:
        return f"it is in none of them; last good version: {found.last_good}" if found.last_good else "of none is it known"
    lines = [f"first bad version: {found.first_bad}; last good version before it: {found.last_good or 'none'}"]
    if found.between:
        lines.append(f"not known of: {', '.join(found.between)}")
    if found.fixed_in is not None:
        lines.append(f"fixed in: {found.fixed_in}")
    return "\n".join(lines)
