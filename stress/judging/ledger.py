"""Ledger: the opinions on disk, a line each behind a line that says by whom: a judge that is killed goes on where it was.

Another judge's opinions (another model, other settings) are no use: the ledger is begun anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import msgspec

from stress.judging.opinion import Opinion, Standing


class _By(msgspec.Struct, frozen=True):
    by: str


def judged_right(path: Path) -> frozenset[tuple[str, int]]:
    """The names of the responses that a ledger says are right; of a file that is none, no names."""
    found = set()
    if path.is_file():
        for raw in path.read_bytes().splitlines()[1:]:
            with contextlib.suppress(msgspec.DecodeError):  # the last line may not be whole
                opinion = msgspec.json.decode(raw, type=Opinion)
                if opinion.standing is Standing.RIGHT:
                    found.add(opinion.name)
    return frozenset(found)


class Ledger:
    """A file of opinions; entered while it is written.

    Attributes:
        opinions: All of them, by the request's name.
    """

    def __init__(self, path: Path, by: str) -> None:
        self.path = path
        self.by = by
        self.opinions: dict[tuple[str, int], Opinion] = {}
        self._keep = self._read()

    def __enter__(self) -> Ledger:
        self._file = self.path.open("r+b" if self._keep else "wb")
        self._file.truncate(self._keep)
        self._file.seek(self._keep)
        if not self._keep:
            self._file.write(msgspec.json.encode(_By(self.by)) + b"\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, opinions: Iterable[Opinion]) -> None:
        """Writes opinions down; they are on their way to the disk when this returns."""
        for opinion in opinions:
            self.opinions[opinion.name] = opinion
            self._file.write(msgspec.json.encode(opinion) + b"\n")
        self._file.flush()

    def _read(self) -> int:
        """Takes in what an earlier judge of the same kind left; returns how many bytes of it are whole."""
        kept = 0
        if not self.path.is_file():
            return kept
        with self.path.open("rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                try:
                    if not kept:
                        if msgspec.json.decode(raw, type=_By).by != self.by:
                            return 0
                    else:
                        opinion = msgspec.json.decode(raw, type=Opinion)
                        self.opinions[opinion.name] = opinion
                except msgspec.DecodeError:
                    break
                kept += len(raw)
        return kept
