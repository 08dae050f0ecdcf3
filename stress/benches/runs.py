"""Runs: a load by locust in a process of its own, judged beside it or when it is over, and what its folder says."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from stress.judging.following import Following, decoded
from stress.judging.ledger import Ledger
from stress.judging.opinion import Standing
from stress.judging.verdicts import Verdicts
from stress.load.desk import TRANSCRIPTS
from stress.load.ending import LEDGER, Ended
from targets.protocol import BadInput

Judging = Literal["none", "after", "beside"]
"""Nobody judges; `slotfuzz verify` does when the load is over, as `slotfuzz stress` has it; or while it goes on."""
QUIET_S = "3600"
"""A judge beside a load waits for the word that it is over, however long nothing comes."""
VERDICTS = "verdicts.json"
LOOK_S = 0.05


class Run(NamedTuple):
    """A load that has ended.

    Attributes:
        code: Locust's exit code.
        said: By locust and by the judge that it started.
        verdicts: None where nobody judged.
    """

    folder: Path
    code: int
    said: str
    ended: Ended
    verdicts: Verdicts | None


def play(url: str, folder: Path, judging: Judging, *words: str) -> Run:
    """Loads an endpoint, with more words for `slotfuzz stress`; returns when all is judged.

    Raises:
        BadInput: where it can't, in locust's own words.
    """
    (folder / TRANSCRIPTS).mkdir(parents=True)
    command = [sys.executable, "-m", "fuzz", "stress", "--host", url, "--headless", "--only-summary", "--out", str(folder)]
    command += words if judging == "after" else ("--no-verify", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as load:
        said = _judged_beside(load, folder) if judging == "beside" else load.communicate()[0]
    try:
        ended = msgspec.json.decode((folder / "load.json").read_bytes(), type=Ended)
        told = (folder / VERDICTS).read_bytes() if judging != "none" else None
    except OSError as error:
        rule = "such that it loads the endpoint and is judged"
        raise BadInput("the load's options", rule, " ".join(words), said[-500:]) from error
    verdicts = None if told is None else msgspec.json.decode(told, type=Verdicts)
    return Run(folder, load.returncode, said, ended, verdicts)


def _judged_beside(load: subprocess.Popen[str], folder: Path) -> str:
    """Judges beside a load from when it says what it loads, and then what is left; returns what the load said."""
    while not (folder / "run.json").exists() and load.poll() is None:
        time.sleep(LOOK_S)
    command = [sys.executable, "-m", "fuzz", "verify", str(folder), "--follow", "--quiet-seconds", QUIET_S]
    judge = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert judge.stdout is not None
        judge.stdout.readline()  # what it judges: from now on it hears signals
        said = load.communicate()[0]
        judge.send_signal(signal.SIGTERM)
        judge.communicate()
    finally:
        judge.kill()
        judge.wait()
    return said


def first_bad_s(folder: Path) -> float | None:
    """So long after the first request the first response had come that is wrong, or was lost; None where none is."""
    bad = (Standing.WRONG, Standing.LOST)
    opinions = Ledger(folder / LEDGER, _by(folder)).opinions
    heard = {(each.source, each.number): decoded(each.raw).exchange for each in Following(folder).read()}
    ends = [heard[name].ended_s for name, opinion in opinions.items() if opinion.standing in bad]
    return round(min(ends) - min(exchange.sent_s for exchange in heard.values()), 3) if ends else None


def _by(folder: Path) -> str:
    """Who judged, as the verdicts say."""
    return msgspec.json.decode((folder / VERDICTS).read_bytes(), type=Verdicts).by
