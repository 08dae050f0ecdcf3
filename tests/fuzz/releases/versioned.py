"""A target over an engine that has releases: what it gets wrong depends on the one that is installed.

As a user's own it is reached by `--target tests.fuzz.releases.versioned:factory`. `wheel` writes a release.
"""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from targets.protocol import Event, Request, Setting, check_settings
from tests.fuzz.scripted import Honest, Scripted

PACKAGE = "slotfuzz_test_engine"


class Versioned(Honest):
    """Asks the engine how it behaves, where it is driven."""

    def submit(self, submission: int, request: Request) -> list[Event]:
        behaves: str = importlib.import_module(PACKAGE).BEHAVES
        if behaves == "lacks a call":
            raise AttributeError("the engine has no submit")
        if len(self.live) == 1 and behaves == "fails":
            raise IndexError("row 1 is out of range")
        if len(self.live) == 1 and behaves == "loses requests":
            return []
        return super().submit(submission, request)


class Factory(Scripted):
    """Opens targets over what is installed."""

    def __init__(self) -> None:
        super().__init__(Versioned)

    def open(self, settings: Mapping[str, Setting]) -> Honest:
        check_settings(self.knobs, settings)
        importlib.import_module(PACKAGE)
        return super().open(settings)


def factory() -> Factory:
    """The factory, also where the engine is not installed."""
    return Factory()


def wheel(folder: Path, version: str, behaves: str) -> Path:
    """Writes a release of the engine."""
    about = f"{PACKAGE}-{version}.dist-info"
    path = folder / f"{PACKAGE}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{PACKAGE}.py", f"BEHAVES = {behaves!r}\n")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return path
