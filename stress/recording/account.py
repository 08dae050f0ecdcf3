"""Account: what a served target was asked, call by call, in a file: the schedule that it really had.

A server batches by the clock, so which requests met in which step is known to nobody but the target. `recorded` wraps a
factory: its targets write down each submission, each cancel and how many steps lay between, and a replay of that is exact,
bit for bit, for a target that moves only when it is stepped. Steps are written with the next call that is none: a server
that is killed loses none that mattered.

A file holds one *life* after another: a target that raised is replaced by a fresh one, which remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from targets.protocol import (
    Audit,
    BadInput,
    Cancel,
    Event,
    Factory,
    Op,
    Reason,
    Request,
    Schedule,
    Setting,
    Step,
    Submit,
    Target,
)


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A fresh target begins here."""

    settings: dict[str, Setting]


class Told(msgspec.Struct, frozen=True, tag="told"):
    """A request was handed in under this number, which counts on from life to life."""

    submission: int
    request: Request


Entry = Opened | Told | Step | Cancel
_DECODER = msgspec.json.Decoder(Entry)


@dataclass
class Life:
    """What one target was asked.

    Attributes:
        places: The submission in this life, counted from 0, of each of the server's numbers.
        ops: With submissions as in this life.
    """

    settings: dict[str, Setting]
    places: dict[int, int] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    @property
    def schedule(self) -> Schedule:
        """All of it."""
        return Schedule(ops=tuple(self.ops), settings=self.settings)

    def add(self, entry: Told | Step | Cancel) -> None:
        """Takes the next entry in."""
        if isinstance(entry, Step):
            self.ops.append(entry)
        elif isinstance(entry, Cancel):
            if entry.submission in self.places:  # else of a life before
                self.ops.append(Cancel(self.places[entry.submission]))
        else:
            request = entry.request
            if request.sample_of is not None:
                request = msgspec.structs.replace(request, sample_of=self.places.get(request.sample_of))
            self.places[entry.submission] = len(self.places)
            self.ops.append(Submit(request))


def read_lives(path: Path) -> Iterator[Life]:
    """The lives of an account; a last line that is not whole is left out.

    Raises:
        BadInput: where the file can't be read or is no account.
    """
    life: Life | None = None
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                entry = _DECODER.decode(line)
                if isinstance(entry, Opened):
                    if life is not None:
                        yield life
                    life = Life(entry.settings)
                elif life is not None:
                    life.add(entry)
    except OSError as error:
        raise BadInput("--record", "a file that can be read", path, error.strerror or "unreadable") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput("--record", "an account as `slotfuzz serve --record` writes it", path, str(error)) from error
    if life is not None:
        yield life


@contextmanager
def recorded(factory: Factory, path: Path) -> Iterator[Factory]:
    """A factory whose targets, while it is entered, write down what they are asked, in a file that is begun anew.

    Raises:
        BadInput: where the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb", buffering=0)
    except OSError as error:
        raise BadInput("--record", "a file that can be written", path, error.strerror or "not writable") from error
    with file:
        yield cast(Factory, _Recorded(factory, file))


class _Recorded:
    """Everything that the factory is, but for `open`."""

    def __init__(self, factory: Factory, file: IO[bytes]) -> None:
        self._factory = factory
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factory, name)

    def open(self, settings: Mapping[str, Setting]) -> Target:
        """A fresh target, written down."""
        target = self._factory.open(settings)
        self._file.write(_line(Opened(dict(settings))))
        return _Writing(target, self._file)


class _Writing:
    """A target that writes down what it is asked before it does it: what makes it raise is in the account."""

    def __init__(self, target: Target, file: IO[bytes]) -> None:
        self._target = target
        self._file = file
        self._steps = 0

    def submit(self, submission: int, request: Request) -> list[Event]:
        """As `Target.submit`."""
        self._write(Told(submission, request))
        return self._target.submit(submission, request)

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """As `Target.cancel`."""
        self._write(Cancel(submission))
        return self._target.cancel(submission, reason)

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """As `Target.step`."""
        self._steps += 1
        return self._target.step(rows)

    def audit(self) -> Audit | None:
        """As `Target.audit`."""
        return self._target.audit()

    def close(self) -> None:
        """As `Target.close`."""
        self._target.close()

    def _write(self, entry: Told | Cancel) -> None:
        steps, self._steps = self._steps, 0
        self._file.write((_line(Step(steps)) if steps else b"") + _line(entry))


def _line(entry: Entry) -> bytes:
    return msgspec.json.encode(entry) + b"\n"
