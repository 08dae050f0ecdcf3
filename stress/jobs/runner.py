"""Runner: runs jobs, so many at a time, each as a process with the command line that one would type.

Their processes end with the service, whatever ends it. A campaign is asked for the time that it has not had yet, so that it
goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import trio

from fuzz.apart import Apart
from fuzz.campaign.folder import Folder
from stress.jobs.store import Job, State, Store
from targets.protocol import BadInput

TICK_S = 0.1
GRACE_S = 180.0
"""A job that is told to stop may take so long to confirm what it found."""
LEAST_S = 0.001


@dataclass
class Running:
    """A job whose process runs."""

    job: Job
    process: Apart
    written: int = 0
    cancelled: bool = False
    told_s: float | None = None


class Runner:
    """Runs the jobs of one folder.

    Attributes:
        running: By number.
        closing: Whether no more are begun.
    """

    def __init__(self, folder: Path, store: Store, at_once: int = 1) -> None:
        self.folder = folder
        self.store = store
        self.at_once = at_once
        self.running: dict[int, Running] = {}
        self.closing = False

    def folder_of(self, number: int) -> Path:
        """Where a job writes."""
        return self.folder / "jobs" / str(number)

    def output_of(self, number: int) -> Path:
        """What a job printed."""
        return self.folder_of(number) / "output.txt"

    async def run(self) -> None:
        """Begins and looks after jobs until it is cancelled."""
        self.store.requeue()
        try:
            while True:
                self.tick()
                await trio.sleep(TICK_S)
        finally:
            for running in self.running.values():
                self.listen(running)
                running.process.end()

    def tick(self) -> None:
        """Looks after everything once."""
        for running in list(self.running.values()):
            over = running.process.over()
            self.listen(running)
            if running.told_s is not None and monotonic() - running.told_s > GRACE_S:
                running.process.end()
                over = True
            if over:
                self.end(running)
        while not self.closing and len(self.running) < self.at_once:
            job = self.store.next()
            if job is None:
                return
            self.begin(job)

    def begin(self, job: Job) -> None:
        """Starts a job's process."""
        folder = self.folder_of(job.id)
        folder.mkdir(parents=True, exist_ok=True)
        self.store.begin(job.id)
        self.running[job.id] = Running(job, Apart("fuzz.apart", words_now(job, folder)))

    def end(self, running: Running) -> None:
        """A process has ended; one that was interrupted because the service ends stays to be run again."""
        running.process.end()
        del self.running[running.job.id]
        if running.cancelled:
            self.store.end(running.job.id, State.CANCELLED, running.process.status)
        elif running.told_s is None:
            self.store.end(running.job.id, State.DONE, running.process.status)

    def cancel(self, number: int) -> None:
        """Ends a job early; what it found is kept."""
        job = self.store.job(number)
        if number in self.running:
            self.running[number].cancelled = True
            self.stop(self.running[number])
        elif not job.over:
            self.store.end(number, State.CANCELLED, None)

    def stop(self, running: Running) -> None:
        """Types Ctrl-C, once."""
        if running.told_s is None:
            running.told_s = monotonic()
            running.process.interrupt()

    async def drain(self, grace_s: float) -> None:
        """Has every job come to an end for now; it goes on when the service is started again."""
        self.closing = True
        for running in self.running.values():
            self.stop(running)
        with trio.move_on_after(grace_s):
            while self.running:
                await trio.sleep(TICK_S)

    def listen(self, running: Running) -> None:
        """Writes down what a process printed."""
        fresh, running.written = running.process.output_since(running.written)
        if fresh:
            with self.output_of(running.job.id).open("ab") as file:
                file.write(fresh)


def words_now(job: Job, folder: Path) -> list[str]:
    """The command line of a job as it stands: into its folder, and with the time that is left.

    A load test begins again after a restart, in a folder of its own: each holds one run.
    """
    words = list(job.words)
    if job.kind == "load":
        tried = sum(1 for _ in folder.glob("load*"))
        return [*words, "--out", str(folder / ("load" if not tried else f"load-{tried + 1}"))]
    if job.kind != "fuzz":
        return words
    try:
        campaign = Folder(folder).begun()
    except BadInput:
        campaign = None
    if campaign is not None:
        if "--seed" not in words:
            words += ["--seed", str(campaign.seed)]
        if "--seconds" in words:
            at = words.index("--seconds") + 1
            had = sum(session.seconds for session in campaign.sessions)
            words[at] = f"{max(LEAST_S, float(words[at]) - had):.3f}"
    return [*words, "--out", str(folder), "--json", str(folder / "run.json")]
