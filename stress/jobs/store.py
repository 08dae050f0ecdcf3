"""Store: the jobs, in SQLite. One connection, one thread; every change is on the disk before it is told."""

from __future__ import annotations

import enum
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    words TEXT NOT NULL,
    state TEXT NOT NULL,
    code INTEGER,
    created_s REAL NOT NULL,
    began_s REAL,
    ended_s REAL
)
"""
_FIELDS = "id, kind, words, state, code, created_s, began_s, ended_s"


class State(enum.StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class Job(msgspec.Struct, frozen=True):
    """One job.

    Attributes:
        words: Those of `slotfuzz` that it runs, less what the service adds.
        code: It exited with; None before, and where it was killed.
        created_s, began_s, ended_s: Seconds since 1970.
    """

    id: int
    kind: str
    words: tuple[str, ...]
    state: State
    code: int | None
    created_s: float
    began_s: float | None
    ended_s: float | None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in (State.DONE, State.CANCELLED)


class Store:
    """The jobs of one folder."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        with self.database:
            self.database.execute(_TABLE)

    def add(self, kind: str, words: Sequence[str]) -> Job:
        """Takes a job in."""
        values = (kind, msgspec.json.encode(words).decode(), State.QUEUED, time.time())
        with self.database:
            row = self.database.execute("INSERT INTO jobs (kind, words, state, created_s) VALUES (?, ?, ?, ?)", values)
        assert row.lastrowid is not None, "it was inserted"
        return self.job(row.lastrowid)

    def job(self, number: int) -> Job:
        """A job by its number.

        Raises:
            KeyError: where there is none.
        """
        row = self.database.execute(f"SELECT {_FIELDS} FROM jobs WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise KeyError(number)
        return _job(row)

    def jobs(self, limit: int = 200) -> list[Job]:
        """The last jobs, the newest first."""
        return [_job(row) for row in self.database.execute(f"SELECT {_FIELDS} FROM jobs ORDER BY id DESC LIMIT ?", (limit,))]

    def next(self) -> Job | None:
        """The job that has waited for longest."""
        rows = f"SELECT {_FIELDS} FROM jobs WHERE state = ? ORDER BY id LIMIT 1"
        row = self.database.execute(rows, (State.QUEUED,)).fetchone()
        return None if row is None else _job(row)

    def begin(self, number: int) -> None:
        """It runs; when it first did stays."""
        with self.database:
            self.database.execute(
                "UPDATE jobs SET state = ?, began_s = coalesce(began_s, ?) WHERE id = ?",
                (State.RUNNING, time.time(), number),
            )

    def end(self, number: int, state: State, code: int | None) -> None:
        """It is over."""
        with self.database:
            self.database.execute(
                "UPDATE jobs SET state = ?, code = ?, ended_s = ? WHERE id = ?", (state, code, time.time(), number)
            )

    def requeue(self) -> None:
        """What ran when the service ended is to run again."""
        with self.database:
            self.database.execute("UPDATE jobs SET state = ? WHERE state = ?", (State.QUEUED, State.RUNNING))

    def close(self) -> None:
        """Gives the file back."""
        self.database.close()


def _job(row: tuple[object, ...]) -> Job:
    number, kind, words, state, *rest = row
    assert isinstance(words, str), "as it was inserted"
    return msgspec.convert((number, kind, msgspec.json.decode(words), state, *rest), type=_Row).job()


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A row as SQLite has it."""

    id: int
    kind: str
    words: tuple[str, ...]
    state: State
    code: int | None
    created_s: float
    began_s: float | None
    ended_s: float | None

    def job(self) -> Job:
        """The same as a job."""
        return Job(*msgspec.structs.astuple(self))
