"""Child: one worker process as its parent has it: started, talked to, listened to, ended.

Whatever the process does (die, hang, print without end, keep its pipes open in what it started), no call here waits longer
than it says, and after `end` neither the process nor anything of its session is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from fuzz.wire import ToWorker, encode, take_frame
from fuzz.worker_main import WHERE_SIGNAL

OUTPUT_BYTES_MAX = 2**14
"""So much of what it printed last is kept."""
OURS = Path(__file__).resolve().parent.parent
"""Where slotfuzz's packages lie."""
POLITE_S = 2.0
"""A child that was told to end is killed after so long."""
_DYING_S = 1.0
_KILLED_S = 10.0
_WHERE_S = 3.0
_TOLD_WHERE = re.compile(rb"most recent call first\):\n +File [^\n]*\n")
_READ_BYTES = 2**20
_LINES = 3


class Child:
    """A process of `fuzz.worker_main`, in a session of its own: Ctrl-C in the terminal is not for it. To be ended or closed.

    Args:
        python: Another interpreter, with an environment of its own; slotfuzz's own code it gets from here.

    Attributes:
        gone: Whether it has died or hung up, and all that it said before was heard.
    """

    def __init__(self, python: Path | None = None) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._output, output = os.pipe()
        theirs = (requests, answers, lifeline)
        try:
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-P", "-m", "fuzz.worker_main", *map(str, theirs)],
                env=None if python is None else {**os.environ, "PYTHONPATH": str(OURS)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=theirs,
                start_new_session=True,
            )
        finally:
            for fd in (*theirs, output):
                os.close(fd)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._open = [self._requests, self._answers, self._lifeline, self._output, self._pidfd]
        for fd in (self._requests, self._answers, self._output):
            os.set_blocking(fd, False)
        self._buffer = bytearray()
        self._printed = bytearray()
        self.gone = False

    @property
    def pid(self) -> int:
        """Its process id, and that of its session."""
        return self._process.pid

    def say(self, message: ToWorker, seconds: float) -> None:
        """Sends a message; one that is not taken in time, or by nobody, is lost: `hear` will tell."""
        left = memoryview(encode(message))
        until = time.monotonic() + seconds
        writable = select.poll()
        writable.register(self._requests, select.POLLOUT)
        while left and writable.poll(1000 * max(0.0, until - time.monotonic())):
            try:
                left = left[os.write(self._requests, left) :]
            except BrokenPipeError:
                return

    def hear(self, seconds: float) -> bytes | None:
        """The body of the next frame; None if it said nothing for so long, or is gone.

        Raises:
            ValueError: if what it says is no frame.
        """
        until = time.monotonic() + seconds
        while (frame := take_frame(self._buffer)) is None and not self.gone:
            ready = self._listen(until, self._answers, self._output, self._pidfd)
            if self._answers in ready:
                data = os.read(self._answers, _READ_BYTES)
                self._buffer += data
                self.gone = not data
            elif self._pidfd in ready:
                self.gone = True
            elif time.monotonic() >= until:  # only after a look at the pipe: the parent may have slept itself
                break
        return frame

    def forget(self) -> None:
        """What it printed so far is of no more interest."""
        self._printed.clear()

    def last_words(self) -> tuple[str, ...]:
        """The last lines it printed, or where it was if it said so (by faulthandler); no memory addresses."""
        text = re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", self._printed.decode(errors="replace"))
        lines = [line.strip()[:200] for line in text.splitlines() if line.strip()]
        stacks = [index for index, line in enumerate(lines) if line.endswith("(most recent call first):")]
        if stacks:
            lines = lines[: stacks[-1]] + lines[stacks[-1] + 1 : stacks[-1] + 2]
        return tuple(lines[-_LINES:])

    def ask_where(self) -> None:
        """Has a child that hangs print where, if it still can."""
        signal.pidfd_send_signal(self._pidfd, WHERE_SIGNAL)
        until = time.monotonic() + _WHERE_S
        while not _TOLD_WHERE.search(self._printed) and time.monotonic() < until:
            self._listen(until, self._output)

    def end(self) -> int | None:
        """Kills it and whatever of its session is left. Its exit status if it died by itself, else None."""
        own = self._dies(_DYING_S if self.gone else 0.0)
        with contextlib.suppress(PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # the id is not free yet: nobody has waited for it
        dead = own or self._dies(_KILLED_S)  # a driver that hangs may keep even a killed process
        status = self._process.wait() if dead else None
        self._listen(0.0, self._output)
        for fd in self._open:
            os.close(fd)
        self._open.clear()
        return status if own else None

    def close(self) -> None:
        """Hangs up, so that it ends by itself; kills it where it does not."""
        self._open.remove(self._requests)
        os.close(self._requests)
        self._dies(POLITE_S)
        self.end()

    def _dies(self, seconds: float) -> bool:
        """Whether it is dead within so long."""
        until = time.monotonic() + seconds
        while self._pidfd not in self._listen(until, self._pidfd, self._output):
            if time.monotonic() >= until:
                return False
        return True

    def _listen(self, until: float, *sources: int) -> set[int]:
        """Waits for news from some file descriptors, takes in what was printed, and returns those that have any."""
        poll = select.poll()
        for fd in sources:
            if fd in self._open:
                poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(1000 * max(0.0, until - time.monotonic()))}
        if self._output in ready:
            data = os.read(self._output, _READ_BYTES)
            self._printed += data
            del self._printed[:-OUTPUT_BYTES_MAX]
            if not data:  # it has closed it
                self._open.remove(self._output)
                os.close(self._output)
        return ready
