"""Worker: a stage whose target lives in a process of its own, so that nothing it does to that process ends the fuzzer.

A trace through a worker is, bit for bit, the one in process. Where the process dies (a signal, an abort, an exit), the
trace up to the call under way ends with a fatal `Crashed`; where it says nothing for too long it is killed, and the trace
ends with a `Stalled` that names the call. Neither event holds anything that may differ from replay to replay: what was
printed, and how long was waited, is told apart (`last_words`). The next schedule finds a new process.

Before a schedule is sent it is written down, as `Running`: should the fuzzer itself be killed, the file names the culprit.
"""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from fuzz.child import Child
from fuzz.clients import sentence
from fuzz.stage import InProcess, Stage
from fuzz.wire import Build, Calling, FromWorker, Misused, Play, Ready, Said, decode_from_worker
from targets.protocol import BadInput, Crashed, Event, Factory, Request, Schedule, Setting, Stalled, Submit, Trace
from targets.registry import TARGETS, TargetSpec, build

HANG_S = 5.0
"""A target that says nothing for so long hangs, unless replays of it have been slow."""
HANG_TIMES = 20
"""So many times the longest silence of any replay that came to its end are always waited."""
COLD_S = 60.0
"""So long until a first replay has come to its end: kernels are loaded, caches are cold."""
START_S = 600.0
"""So long to import the target and build its model."""


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule that runs now, on which target: read it with `msgspec.json.decode(data, type=Running)`."""

    target: TargetSpec
    schedule: Schedule


@dataclass
class Patience:
    """How long a target may say nothing.

    Attributes:
        hang_s: Seconds asked for; None for our own, more while everything is cold.
        longest_s: The longest silence of the replays that came to their end; None before the first.
        tried: Whether it said nothing even for COLD_S: then it is asked something simple, to see how slow it is when cold.
    """

    hang_s: float | None = None
    longest_s: float | None = None
    tried: bool = False

    @property
    def limit_s(self) -> float:
        """Seconds of silence after which a target hangs."""
        if self.longest_s is None:
            return COLD_S if self.hang_s is None else self.hang_s
        return max(HANG_S if self.hang_s is None else self.hang_s, HANG_TIMES * self.longest_s)

    def learn(self, silence_s: float) -> None:
        """A replay came to its end, with this longest silence."""
        self.longest_s = max(silence_s, self.longest_s or 0.0)


class Worker:
    """Plays in a child process, which it starts when it is needed and after every death. To be closed.

    Attributes:
        running: The file that holds the running schedule; removed by `close`.
        patience: How long the target may say nothing.
        python: The interpreter of the child; None for this one.
    """

    in_process = False

    def __init__(
        self,
        spec: TargetSpec,
        patience: Patience | None = None,
        running: Path | None = None,
        python: Path | None = None,
    ) -> None:
        self.spec = spec
        self.patience = patience or Patience()
        self.running = running
        self.python = python
        self._child: Child | None = None
        self._last_words: tuple[str, ...] = ()

    @property
    def pid(self) -> int | None:
        """Of the child; None while there is none."""
        return None if self._child is None else self._child.pid

    async def play(self, schedule: Schedule, audits: bool = True) -> Trace:
        """As `Stage.play`.

        Raises:
            BadInput: also if the target can't be built in a process of its own.
        """
        self._last_words = ()
        if self.patience.tried and self.patience.longest_s is None:
            await self._learn_patience(schedule.settings)
        if self.running is not None:
            self.running.parent.mkdir(parents=True, exist_ok=True)
            self.running.write_bytes(msgspec.json.encode(Running(self.spec, schedule)))
        try:
            self._child = child = self._child or self._started()
            child.forget()
            told = self._follow(child, Play(schedule, audits))
        except BaseException:  # Ctrl-C: this child is in the middle of something
            self._drop()
            raise
        if isinstance(told, Misused):
            raise BadInput(told.name, told.rule, told.got, told.where)
        return told

    def renewed(self) -> Worker:
        """A worker with a child of its own."""
        return Worker(self.spec, self.patience, self.running, self.python)

    def last_words(self) -> tuple[str, ...]:
        """As `Stage.last_words`."""
        return self._last_words

    def close(self) -> None:
        """Ends the child; the schedule that ran last has come to its end."""
        if self._child is not None:
            self._child.close()
            self._child = None
        if self.running is not None:
            self.running.unlink(missing_ok=True)

    async def _learn_patience(self, settings: dict[str, Setting]) -> None:
        """Plays one token of one request in a child of its own: to wait COLD_S for every hang would be too long."""
        self.patience.tried = False
        spare = self.renewed()
        await spare.play(Schedule(ops=(Submit(Request(prompt=(1,), max_new_tokens=1)),), settings=settings))
        spare.close()
        self.patience.learn(0.0)  # where this hangs as well, that was the last time for COLD_S

    def _started(self) -> Child:
        """A child with the factory built."""
        child = Child(self.python)
        try:
            child.say(Build(self.spec, sys.path if self.python is None else [], torch.get_num_threads()), START_S)
            answer = _answer(child, START_S)
            if isinstance(answer, Ready):
                return child
            hangs = not child.gone
        except BaseException:
            child.end()
            raise
        status = child.end()
        if isinstance(answer, Misused):
            raise BadInput(answer.name, answer.rule, answer.got, answer.where)
        got = f"no answer in {START_S:g} s" if hangs else f"one that {_fate(status)}"
        if self.python is not None and not child.last_words():
            raise BadInput("--python", "a Python interpreter that can build the target", self.python, got)
        where = " ".join((self.spec.target, *child.last_words()[-1:]))
        raise BadInput("target", "one that can be built in a process of its own", got, where)

    def _follow(self, child: Child, asked: Play) -> Trace | Misused:
        """Takes in what a child says of one replay, to its end or the child's."""
        limit_s, silence_s = self.patience.limit_s, 0.0
        events: list[Event] = []
        calling = Calling("waiting", (), ())
        child.say(asked, limit_s)
        while True:
            since = time.monotonic()
            said = _answer(child, limit_s)
            silence_s = max(silence_s, time.monotonic() - since)
            if isinstance(said, Misused):
                return said
            if not isinstance(said, Said):
                return (*events, *self._end_of(child, calling, events, said if isinstance(said, Exception) else None))
            events += said.events
            if said.calling is None:
                self.patience.learn(silence_s)
                return tuple(events)
            calling = said.calling

    def _end_of(self, child: Child, calling: Calling, events: list[Event], nonsense: Exception | None) -> tuple[Event, ...]:
        """The event for a child that talks nonsense, hangs, or has died; none where the replay was over before."""
        hangs = nonsense is None and not child.gone
        if hangs:
            self.patience.tried = self.patience.hang_s is None
            child.ask_where()
        status = child.end()
        self._child = None
        waited = (f"said nothing for {self.patience.limit_s:.1f} s, then it was killed",) if hangs else ()
        self._last_words = (*waited, *child.last_words())
        if any(isinstance(event, Crashed | Stalled) for event in events):
            return ()
        if nonsense is not None:
            return (Crashed("answer", sentence(nonsense), calling.live),)
        if hangs:
            return (Stalled(calling.live, 0, calling.doing),)
        return (Crashed(calling.doing, _fate(status), calling.concerned, fatal=True),)

    def _drop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def stage_for(
    spec: TargetSpec,
    factory: Factory,
    in_process: bool = False,
    patience: Patience | None = None,
    running: Path | None = None,
    python: Path | None = None,
) -> Stage:
    """Where schedules of a target are played: a user's own and real engines in a worker, ours in this process."""
    if in_process or spec.target in TARGETS:
        return InProcess(factory, partial(build, spec))
    return Worker(spec, patience, running, python)


def _answer(child: Child, seconds: float) -> FromWorker | Exception | None:
    """The next thing a child says, or why it makes no sense; None where it says nothing or is gone."""
    try:
        body = child.hear(seconds)
        return None if body is None else decode_from_worker(body)
    except (ValueError, msgspec.MsgspecError) as error:
        return error


def _fate(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "broke off its answer"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
