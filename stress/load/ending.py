"""The ending: what a run's folder holds when locust quits, who judges the answers, and how locust's process ends.

transcripts/     what was asked and heard, a file a process
run.json         the plan, and what the endpoint says of itself
load.json        latencies, goodput, account, gauges
verdicts.json    written by `slotfuzz verify`, which is started here; and judged.jsonl, its opinion of each response
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import msgspec

from stress.load.account import transcripts
from stress.load.figures import Figures, figures_of
from stress.load.gauged import Gauged
from stress.load.plan import Plan
from stress.load.telling import tell
from stress.offer import Offer
from targets.protocol.errors import BadInput

WRONG, UNDECIDED = 1, 3
LEDGER = "judged.jsonl"
VERIFY = "verify"
AGAIN_S = 2.0
"""A judge that still judges is told to stop again after so long."""

Judge = Callable[[Path, tuple[str, ...]], int]
"""Judges the answers in a run's folder, as more words say; returns how it ended, as an exit code."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What `load.json` says.

    Attributes:
        unsent: Requests of open arrivals that were due while too many were in flight.
        verified: How the judge ended; None where nobody judged.
    """

    figures: Figures
    gauges: Gauged | None
    unsent: int
    verified: int | None


def check_folder(plan: Plan) -> None:
    """Refuses a folder in which another run is, or that can't be made.

    Raises:
        BadInput: where it is.
    """
    folder = Path(plan.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput("--out", "a folder that can be made", plan.out, str(error)) from error
    if transcripts(folder):
        raise BadInput("--out", "a folder without another run in it", plan.out)


def note_plan(plan: Plan, model: str, offer: Offer | None = None) -> None:
    """Writes the plan down, less the key, with what the endpoint says that it serves."""
    told = msgspec.to_builtins(msgspec.structs.replace(plan, model=model, api_key=None))
    _write(Path(plan.out) / "run.json", told | {"served": msgspec.to_builtins(offer)})


def conclude(plan: Plan, gauges: Gauged | None, unsent: int, judge: Judge) -> int:
    """Has the answers judged, writes down and prints what there is to say; returns the exit code, 0 for nothing wrong."""
    folder = Path(plan.out)
    verified = None if plan.verify is None else judge(folder, plan.verify)
    figures = figures_of(folder, plan.slo, None if verified is None else judged_right(folder))
    ended = Ended(figures=figures, gauges=gauges, unsent=unsent, verified=verified)
    _write(folder / "load.json", msgspec.to_builtins(ended))
    click.echo(tell(figures, gauges, unsent))
    account = figures.account
    if account.unreached == account.sent:
        click.echo(f"nothing was reached: none of {account.sent} requests found a connection", err=True)
    if account.lost or (gauges is not None and gauges.held_idle) or verified == WRONG:
        return WRONG
    if verified or account.unreached == account.sent:
        return UNDECIDED
    return 0


class _Opinion(msgspec.Struct, frozen=True):
    """What the judge's ledger says of a response, as far as it matters here; its first line is another."""

    source: str = ""
    number: int = 0
    standing: str = ""


def judged_right(folder: Path) -> set[tuple[str, int]] | None:
    """(process, number) of the responses that were judged right; None where nobody judged."""
    path = folder / LEDGER
    if not path.is_file():
        return None
    with path.open("rb") as file:
        opinions = [msgspec.json.decode(line, type=_Opinion) for line in file if line.endswith(b"\n")]
    return {(opinion.source, opinion.number) for opinion in opinions if opinion.standing == "right"}


class Verifier:
    """`slotfuzz verify` in a process of its own, which ends with us and may be told to stop."""

    def __init__(self) -> None:
        self.stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, folder: Path, words: tuple[str, ...]) -> int:
        """Starts it and waits for it; 3 where nobody judges, or it was ended from outside."""
        if not entry_points(group="slotfuzz.commands", name=VERIFY):
            click.echo("no answer was judged: there is no `slotfuzz verify` (--no-verify asks for none)", err=True)
            return UNDECIDED
        if self.stopped:
            click.echo("no answer was judged: the run was told to end before that", err=True)
            return UNDECIDED
        lifeline, ours = os.pipe()
        command = [sys.executable, "-m", "fuzz.apart", str(lifeline), str(lifeline), VERIFY, str(folder), *words]
        try:
            self._process = process = subprocess.Popen(command, pass_fds=(lifeline,))
            try:
                code = process.wait()
            except KeyboardInterrupt:  # which the judge has heard as well
                self.stop()
                code = process.wait()
        finally:
            os.close(lifeline)
            os.close(ours)
        if code < 0:
            click.echo(f"not every answer was judged: the judge was ended by signal {-code}", err=True)
            return UNDECIDED
        return code

    def stop(self) -> None:
        """Tells it to say what it knows and to end; it may take a moment, and need to be told twice."""
        self.stopped = True
        while self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(AGAIN_S)


def _write(path: Path, told: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1))
