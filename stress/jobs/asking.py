"""Asking: a body, from a form or as JSON, to the words of a command line. Whatever is not asked for by name is refused.

A client chooses no code to run: a target of one's own must be one that the service was started with.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from targets.adapters import ADAPTERS
from targets.protocol import BadInput
from targets.registry import TARGETS

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:][A-Za-z0-9_.:-]*$", max_length=200)]
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=200)]
SECONDS_MAX = 7 * 86_400


class Fuzz(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fuzz", tag_field="kind"):
    """A campaign. Fields as the flags of `slotfuzz run`."""

    target: Name = "slots"
    model: Name | None = None
    faults: tuple[Name, ...] = ()
    seconds: Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)] | None = None
    schedules: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    seed: Annotated[int, msgspec.Meta(ge=0, le=10**15)] | None = None
    settings: dict[Word, Word] = {}
    sanitize: bool = False
    in_a_row: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None

    def words(self) -> list[str]:
        """As one would type them."""
        words = ["run", "--target", self.target, "--workers", str(self.workers), "--resume"]
        words += [] if self.model is None else ["--model", self.model]
        words += [word for fault in self.faults for word in ("--fault", fault)]
        seconds = 60.0 if self.seconds is None and self.schedules is None else self.seconds
        words += [] if seconds is None else ["--seconds", f"{seconds:g}"]
        words += [] if self.schedules is None else ["--schedules", str(self.schedules)]
        words += [] if self.seed is None else ["--seed", str(self.seed)]
        words += [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        words += [] if self.in_a_row is None else ["--in-a-row", str(self.in_a_row)]
        return words + (["--sanitize"] if self.sanitize else [])


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="load", tag_field="kind"):
    """A load test with locust against an endpoint on this machine."""

    host: str = "http://127.0.0.1:8000"
    users: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 8
    seconds: Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)] = 30.0

    def words(self) -> list[str]:
        """As one would type them."""
        at = urlsplit(self.host)
        if at.scheme != "http" or at.hostname not in ("127.0.0.1", "::1", "localhost") or at.username is not None:
            raise BadInput("host", "an http address of this machine", self.host)
        return ["stress", "--headless", "--host", self.host, "-u", str(self.users), "-t", f"{self.seconds:g}s"]


Asked = Fuzz | Load


def asked(body: bytes) -> Asked:
    """What a body of JSON asks for.

    Raises:
        BadInput: where it is no job; says what is wrong and where.
    """
    try:
        return msgspec.json.decode(body, type=Asked)
    except msgspec.MsgspecError as error:
        raise BadInput("job", "JSON of a job that the service takes", "something else", str(error)) from error


def asked_by_form(fields: dict[str, str]) -> Asked:
    """What a form asks for: empty fields are left out, lists are separated by blanks.

    Raises:
        BadInput: as `asked`.
    """
    data: dict[str, object] = {name: value for name, value in fields.items() if value.strip()}
    if "faults" in data:
        data["faults"] = fields["faults"].split()
    if "settings" in data:
        pairs = [word.partition("=") for word in fields["settings"].split()]
        data["settings"] = {name: value for name, _, value in pairs}
    try:
        return msgspec.convert(data, type=Asked, strict=False)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        raise BadInput("job", "a job that the service takes", "something else", str(error)) from error


def check(job: Asked, allowed: Collection[str]) -> None:
    """Refuses code that nobody allowed.

    Raises:
        BadInput: where the target is of somebody's own and was not named when the service was started.
    """
    if isinstance(job, Fuzz) and job.target not in {*TARGETS, *ADAPTERS, *allowed}:
        raise BadInput("target", "a built-in one, or one that the service allows (--allow-target)", job.target)
    if isinstance(job, Fuzz) and job.model is not None and ("/" in job.model or job.model.startswith(".")):
        raise BadInput("model", "a model's name", job.model)
