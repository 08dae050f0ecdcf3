"""Trying: is a stored failure there in one version of the engine?

A version counts only once it has shown that it can be driven: it must take the failure's settings, and answer one request
with its default ones. Otherwise a call that it does not have would pass for the crash that is looked for.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from fuzz.conductor import run_trio
from fuzz.fresh import Afresh, Manner, Outcome
from fuzz.repro import Repro
from fuzz.worker import Worker
from targets.protocol import BadInput, Crashed, Request, Schedule, Stalled, Submit

ALONE = Submit(Request(prompt=(1, 2), max_new_tokens=2))
_NAP_S = 0.05


class Standing(enum.StrEnum):
    """How a version stands to a failure."""

    REPRODUCED = "REPRODUCED"
    FIXED = "FIXED"
    UNDECIDED = "UNDECIDED"
    COULD_NOT_RUN = "could not run"


class Release(msgspec.Struct, frozen=True):
    """One version.

    Attributes:
        why: Of what is neither reproduced nor fixed, a sentence.
        same_bits: Whether the trace is the stored one, bit for bit.
        seconds: What it took to try it, installation aside.
    """

    version: str
    standing: Standing
    why: str = ""
    same_bits: bool = False
    seconds: float = 0.0


class Span(msgspec.Struct, frozen=True):
    """Between which versions a failure came, as far as they were tried.

    Attributes:
        first_bad: The oldest in which it is there.
        last_good: The newest in which it is gone, of those older than that; of all, where it is nowhere.
        between: Those of neither kind in between, or, without a good one, before the first bad one.
        fixed_in: The oldest in which it is gone, of those newer than all in which it is there.
    """

    first_bad: str | None
    last_good: str | None
    between: tuple[str, ...]
    fixed_in: str | None


def span(releases: Sequence[Release]) -> Span:
    """What the versions together say."""
    rows = sorted(releases, key=lambda release: Version(release.version))
    bad = [index for index, row in enumerate(rows) if row.standing is Standing.REPRODUCED]
    good = [index for index, row in enumerate(rows) if row.standing is Standing.FIXED]
    first = min(bad, default=len(rows))
    last = max((index for index in good if index < first), default=-1)
    after = [index for index in good if bad and index > max(bad)]
    return Span(
        first_bad=rows[first].version if bad else None,
        last_good=rows[last].version if last >= 0 else None,
        between=tuple(row.version for row in rows[last + 1 : first]) if bad else (),
        fixed_in=rows[min(after)].version if after else None,
    )


def exit_code(releases: Sequence[Release]) -> int:
    """1 where it is there in some version; 3 where it is in none, and some could not be decided or run; else 0."""
    standings = {release.standing for release in releases}
    if Standing.REPRODUCED in standings:
        return 1
    return 0 if standings == {Standing.FIXED} else 3


def attempt(repro: Repro, path: Path, version: str, python: Path, seconds: float, told: Path) -> Release:
    """Plays a repro in one version's environment.

    Args:
        path: Where the repro lies.
        seconds: So long its judging may take.
        told: A file that does not exist yet.
    """
    began = time.monotonic()
    worker = Worker(repro.target, python=python)
    try:
        unfit = _unfit(worker, repro)
    except BadInput as error:
        unfit = " ".join(str(error).split())
    finally:
        worker.close()
    if unfit:
        return Release(version, Standing.COULD_NOT_RUN, unfit, seconds=time.monotonic() - began)
    afresh = Afresh([path], Manner(repro.target, python=python), told)
    try:
        until = time.monotonic() + seconds
        while not afresh.over() and time.monotonic() < until:
            time.sleep(_NAP_S)
        over, heard = afresh.over(), afresh.outcomes().get(path)
        words = afresh.process.last_words()
    finally:
        afresh.end()
    standing, why = _standing(heard, over, words, seconds)
    return Release(version, standing, why, heard is not None and heard.same_bits, time.monotonic() - began)


def _unfit(worker: Worker, repro: Repro) -> str:
    """Why a version can't be judged: it fails at what the schedule has nothing to do with; empty where it can."""
    settings = repro.schedule.settings
    for what, schedule in (
        ("one request alone, at its defaults, is not answered", Schedule(ops=(ALONE,), settings={})),
        ("it does not take the settings", Schedule(ops=(), settings=settings)),
    ):
        for event in run_trio(worker.play, schedule):
            if isinstance(event, Crashed):
                said = " ".join((event.error, *worker.last_words()[-1:]))
                return f"{what}: {event.doing} {'ended the process, which' if event.fatal else 'raised'} {said}"
            if isinstance(event, Stalled):
                return f"{what}: it hangs"
    return ""


def _standing(heard: Outcome | None, over: bool, words: Sequence[str], seconds: float) -> tuple[Standing, str]:
    """What the judging process said, or did not."""
    if heard is None:
        why = f"it was not judged in {seconds:g} s" if not over else " ".join(("the judge ended without a word", *words))
        return Standing.UNDECIDED, why
    if heard.outcome == "ERROR":
        return Standing.COULD_NOT_RUN, heard.error
    if heard.outcome == "FAILED":
        return Standing.REPRODUCED, ""
    return (Standing.UNDECIDED, "; ".join(heard.undecided)) if heard.undecided else (Standing.FIXED, "")
