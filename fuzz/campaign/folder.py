"""Folder: what a campaign keeps, and where. Every file is written whole or not at all.

    OUT/campaign.json              what it is, its sessions, its bugs
    OUT/repros/ID.json             what failed in a fresh process too
    OUT/found/shard-N/ID.json      what was found and is not confirmed yet
    OUT/shards/N.json              what shard N has done so far
    OUT/shards/N.running.json      the schedule that it judges and follows up right now
    OUT/pending/HASH.json          a schedule that a worker did not come to the end of
    OUT/found/given-up/HASH.json   a schedule that ended every worker which tried it
    OUT/shards/known.json          signatures that nobody needs to follow up again

A worker that is killed leaves the schedule that it was at; it is pending until another one has come to its end. As the same
schedule shows the same findings, what was found in it and not stored yet is found again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from fuzz.mechanisms import MECHANISMS
from fuzz.repro import write_atomically
from targets.protocol import BadInput, Kind, LifeCycle, Schedule, Setting
from targets.registry import TargetSpec

CAMPAIGN_VERSION = 1
FAILED, FIXED, ERROR, UNCONFIRMED = "FAILED", "FIXED", "ERROR", "UNCONFIRMED"
_LEFT_OVER = re.compile(r"^\.(\d+)-[0-9a-f]{8}\.tmp$")

Data = TypeVar("Data")


class Bug(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One signature.

    Attributes:
        id: Of its repro.
        status: FAILED or FIXED when it was replayed last; ERROR where it could not be; UNCONFIRMED where a fresh process did
            not give the same.
        first_seen_s, last_seen_s: Seconds since 1970.
        times: How often it was seen; of what fails often only a part is looked at.
        found_after: Schedules of its shard until then.
        error: Why it could not be replayed.
    """

    signature: str
    id: str
    kind: Kind
    what: str
    status: str
    first_seen_s: float
    last_seen_s: float
    times: int = 1
    found_after: int = 0
    error: str = ""


class Session(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One time that the campaign ran.

    Attributes:
        shards: Those that it began.
        began_s, ended_s: Seconds since 1970; it has not ended, or was killed, where the latter is None.
        seconds: That it was fuzzing.
        deaths: Of workers, each in a sentence.
        undecided: What keeps it from a verdict, each in a sentence: schedules that no worker came to the end of, repros that
            can't be read, a mute model.
    """

    workers: int
    began_s: float
    ended_s: float | None = None
    seconds: float = 0.0
    shards: list[int] = []
    deaths: list[str] = []
    undecided: list[str] = []


class Campaign(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `campaign.json` holds.

    Attributes:
        next_shard: No shard has had this number, or a higher one.
        cycles: How requests may live in the target, so that its page can be written by who can't build it; None where the
            target does not say.
        possible: The mechanisms that every target has and that this one can be made to show.
    """

    version: int = CAMPAIGN_VERSION
    target: TargetSpec
    settings: dict[str, Setting]
    seed: int
    next_shard: int = 0
    cycles: tuple[LifeCycle, ...] | None = None
    possible: tuple[str, ...] = MECHANISMS
    sessions: list[Session] = []
    bugs: list[Bug] = []


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule that a shard is at.

    Attributes:
        tries: How many workers have begun with it and not come to its end, this one included.
    """

    schedule: Schedule
    tries: int = 1


class Folder:
    """The paths, and how they are read and written."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.campaign = out / "campaign.json"
        self.repros = out / "repros"
        self.found = out / "found"
        self.shards = out / "shards"
        self.pending = out / "pending"
        self.known = out / "shards" / "known.json"

    def tally(self, shard: int) -> Path:
        """Where a shard says what it has done."""
        return self.shards / f"{shard}.json"

    def running(self, shard: int) -> Path:
        """Where a shard says what it is at."""
        return self.shards / f"{shard}.running.json"

    def found_by(self, shard: int) -> Path:
        """Where a shard puts what it finds."""
        return self.found / f"shard-{shard}"

    def give_up(self, running: Running) -> Path:
        """Puts a schedule aside that no worker comes to the end of."""
        pending = self.pending_path(running.schedule)
        return _moved(pending, self.found / "given-up" / pending.name)

    def unconfirmed(self) -> list[Path]:
        """Repros that were found and are not confirmed."""
        return sorted(self.found.glob("shard-*/*.json"))

    def pending_path(self, schedule: Schedule) -> Path:
        """Where a schedule lies that has to be tried again."""
        return self.pending / f"{hashlib.sha256(schedule.key()).hexdigest()[:12]}.json"

    def suspend(self, shard: int) -> Running | None:
        """Makes pending what a shard was at that does not run any more; None where it was at nothing."""
        running = read_json(self.running(shard), Running)
        if running is not None:
            _moved(self.running(shard), self.pending_path(running.schedule))
        self.running(shard).unlink(missing_ok=True)
        return running

    def waiting(self) -> list[Running]:
        """Every schedule that is pending."""
        read = (read_json(path, Running) for path in sorted(self.pending.glob("*.json")))
        return [running for running in read if running is not None]

    def begun(self) -> Campaign | None:
        """The campaign that lies here; None if there is none.

        Raises:
            BadInput: where the file is something else.
        """
        try:
            return msgspec.json.decode(self.campaign.read_bytes(), type=Campaign)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise BadInput("campaign", "one of this version", self.campaign, str(error)) from error

    def save(self, campaign: Campaign) -> None:
        """Writes the campaign down."""
        write_json(self.campaign, campaign)

    def clear(self) -> None:
        """Removes what a killed process was about to write, and folders in which nothing is left."""
        for folder in (self.out, self.repros, self.shards, self.pending, *self.found.glob("shard-*")):
            for path in folder.glob(".*.tmp"):
                match = _LEFT_OVER.match(path.name)
                if match and not Path(f"/proc/{match[1]}").exists():
                    path.unlink(missing_ok=True)
        for folder in (*self.found.glob("*"), self.found, self.pending):
            with contextlib.suppress(OSError):  # something lies in it
                folder.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second campaign out of the folder; the kernel gives it up with the process.

        Raises:
            BadInput: where one is in it.
        """
        self.shards.mkdir(parents=True, exist_ok=True)
        with (self.shards / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadInput("--out", "a folder in which no campaign runs", self.out) from error
            yield


def _moved(path: Path, to: Path) -> Path:
    """Moves a file, which also a full disk has room for."""
    to.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, to)
    return to


def write_json(path: Path, data: object) -> None:
    """Writes data down, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(data))


def write_quickly(path: Path, data: object) -> None:
    """The same without waiting for the disk: it outlives the process, and not a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{os.getpid()}-00000000.tmp")
    written.write_bytes(msgspec.json.encode(data))
    os.replace(written, path)


def read_json(path: Path, kind: type[Data]) -> Data | None:
    """Data of a kind; None where there is none or something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
