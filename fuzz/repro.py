"""Repros: a failure as versioned JSON data that replays in a fresh process. Never pickled, never evaluated."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import msgspec

from fuzz.commandline import memory_gib
from fuzz.followup import Failure
from oracle.finding import Finding
from targets.adapters import ADAPTERS
from targets.protocol import BadInput, Factory, Schedule, check_settings, submissions
from targets.protocol.schedule import check_references
from targets.registry import TargetSpec

REPRO_VERSION = 1
REPRO_BYTES_MAX = 2**26


class Repro(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything it takes to see one failure again.

    Attributes:
        id: Names the file; from the schedule, the target, its weights, the finding's kind and the trace.
        identity: The model's name and hash.
        rounding_bound: The logit difference beyond which a request was a suspect.
        trace_digest: SHA-256 of the trace, logits included; equal on equal versions of the same machine.
        seed: Of the run that found it.
        evaluations: Judged schedules that the shrink took.
        memory_gib: How much memory each process could have; None without a limit.
        versions: Of Python and the libraries that arithmetic depends on.
    """

    version: Annotated[int, msgspec.Meta(ge=REPRO_VERSION, le=REPRO_VERSION)]
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")]
    signature: str
    target: TargetSpec
    identity: str
    schedule: Schedule
    finding: Finding
    rounding_bound: Annotated[float, msgspec.Meta(ge=0)]
    trace_digest: str
    seed: Annotated[int, msgspec.Meta(ge=0)]
    evaluations: Annotated[int, msgspec.Meta(ge=0)]
    minimal: bool
    versions: dict[str, str]
    memory_gib: float | None = None


def make(failure: Failure, spec: TargetSpec, factory: Factory, bound: float, seed: int) -> Repro:
    """The repro of a failure."""
    parts = (failure.schedule.key().decode(), repr(spec), factory.identity, failure.finding.kind, failure.trace_digest)
    name = hashlib.sha256("\n".join(parts).encode())
    return Repro(
        version=REPRO_VERSION,
        id=name.hexdigest()[:12],
        signature=failure.signature,
        target=spec,
        identity=factory.identity,
        schedule=failure.schedule,
        finding=failure.finding,
        rounding_bound=bound,
        trace_digest=failure.trace_digest,
        seed=seed,
        evaluations=failure.evaluations,
        minimal=failure.minimal,
        versions=versions(spec.target),
        memory_gib=memory_gib(),
    )


def versions(target: str = "") -> dict[str, str]:
    """Versions that a trace's bits may depend on, those of a real engine where this interpreter has it."""
    names = ("slotfuzz", "torch", "transformers", *(ADAPTERS[target].packages if target in ADAPTERS else ()))
    libraries = {}
    for name in names:
        with suppress(PackageNotFoundError):
            libraries[name] = version_of(name)
    return {"python": platform.python_version(), **libraries}


def save(repro: Repro, folder: Path) -> Path:
    """Writes `<id>.json` into a folder, whole or not at all, and never over another repro.

    The same failure found again has the same id and stands there already; then its path is returned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(repro), indent=1)
    path = folder / f"{repro.id}.json"
    with _whole(folder, data) as written, suppress(FileExistsError):
        try:
            os.link(written, path)  # fails where the name is taken, which a rename does not
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            with path.open("xb") as file:  # a file system without links
                file.write(data)
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file in one go: a reader sees the old one or the new one."""
    with _whole(path.parent, data) as written:
        os.replace(written, path)


def load(path: Path) -> Repro:
    """Reads a repro.

    Raises:
        BadInput: if there is no such file, or it is not a repro of this version; says what is wrong and where.
    """
    try:
        if path.stat().st_size > REPRO_BYTES_MAX:
            raise BadInput("repro", f"at most {REPRO_BYTES_MAX} bytes", path.stat().st_size, str(path))
        repro = msgspec.json.decode(path.read_bytes(), type=Repro)
    except OSError as error:
        raise BadInput("repro", "a file that can be read", path, error.strerror or "unreadable") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput("repro", f"JSON of a repro, version {REPRO_VERSION}", "something else", f"{path}: {error}") from error
    check_references(repro.schedule, str(path))
    return repro


def check_against(repro: Repro, factory: Factory, where: str) -> None:
    """Raises BadInput where a repro's settings or tokens are not the target's, or its model is another one."""
    check_settings(factory.knobs, repro.schedule.settings, where)
    if factory.identity != repro.identity:
        raise BadInput("model", repro.identity, factory.identity, where)
    victim, requests = repro.finding.submission, submissions(repro.schedule)
    if victim is not None and not 0 <= victim < len(requests):
        raise BadInput("submission", f"one of the {len(requests)} of the schedule", victim, f"finding, {where}")
    for submission, request in enumerate(requests):
        for token in (*request.prompt, *request.stop, *request.forced):
            # One id past the end is kept: that a target refuses it is something a schedule may ask.
            if token > factory.vocabulary:
                rule = f"in 0..{factory.vocabulary - 1}"
                raise BadInput("token id", rule, token, f"request #{submission}, {where}")


@contextmanager
def _whole(folder: Path, data: bytes) -> Iterator[Path]:
    """A temporary file with this content, on disk; gone at the end unless it was moved."""
    written = folder / f".{os.getpid()}-{hashlib.sha256(data).hexdigest()[:8]}.tmp"
    try:
        with written.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield written
    finally:
        written.unlink(missing_ok=True)
