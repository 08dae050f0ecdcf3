"""Environments: one for each released version of a distribution, built once and kept.

An environment is a venv with that version in it, and whatever of its needs this interpreter lacks or has in another version;
everything else it takes from this interpreter, torch above all. Only wheels are installed, by pip, from where pip looks:
nobody's build script runs. A folder under its final name is whole: it is built under another one and renamed.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

OURS = "slotfuzz-ours.pth"
_ERROR = "ERROR: "


class NotInstalledError(Exception):
    """Says in a sentence why there is no such environment."""


@dataclass(frozen=True)
class Environments:
    """Those of one distribution.

    Attributes:
        folder: In which they lie.
        seconds: So long an installation may take.
    """

    folder: Path
    distribution: str
    seconds: float

    def python(self, version: str) -> Path:
        """The interpreter of one version's environment, which is built where there is none yet.

        Raises:
            NotInstalledError: where that version can't be had, or not in time.
        """
        name = f"{self.distribution}-{version}-python{platform.python_version()}"
        python = self.folder / name / "bin" / "python"
        if not python.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".building-", dir=self.folder) as building:
                self._build(Path(building) / name, version)
                try:
                    (Path(building) / name).rename(self.folder / name)
                except OSError:  # somebody else was quicker
                    if not python.exists():
                        raise
        return python

    def _build(self, folder: Path, version: str) -> None:
        """Makes a venv, shows it what this interpreter has, and installs; makes sure of what is there then."""
        until = time.monotonic() + self.seconds
        _done([sys.executable, "-m", "venv", str(folder)], until)
        python = str(folder / "bin" / "python")
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / OURS).write_text("".join(f"{path}\n" for path in sys.path if Path(path).name.endswith("-packages")))
        wanted = f"{self.distribution}=={version}"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        _done([*pip, "--only-binary", ":all:", wanted], until)
        asks = f"import importlib.metadata; print(importlib.metadata.version({self.distribution!r}))"
        got = _done([python, "-c", asks], until)
        if Version(got).public != Version(version).public:
            raise NotInstalledError(f"{wanted} was asked for, and {got} is there")


def _done(command: list[str], until: float) -> str:
    """What a command prints last; it and all that it started are gone by then, in time or not."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            status = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NotInstalledError("it was not installed in time") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        lines = [line.strip() for line in printed.read().decode(errors="replace").splitlines() if line.strip()]
    if status:
        errors = [line for line in lines if line.startswith(_ERROR)]
        raise NotInstalledError((errors or lines or [f"exit status {status}"])[-1].removeprefix(_ERROR))
    return lines[-1] if lines else ""
