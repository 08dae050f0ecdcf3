"""Apart: a process of ours in a session of its own, which ends with us and which we can listen to, and end.

    python -P -m fuzz.apart FD_LIFELINE WORD…

runs a command of slotfuzz that ends with its parent. Ctrl-C in the terminal is not for it; whoever started it passes on what
it should hear. Nothing here waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from fuzz.lifeline import die_with_parent

OUTPUT_BYTES_MAX = 2**20
"""So much of what it printed last is kept."""
_READ_BYTES = 2**16
_LINES = 3


class Apart:
    """A process of a module of ours: its first argument is a lifeline, its second a pipe for beats. To be ended.

    Attributes:
        beats: Bytes that it wrote to its second pipe, so far.
    """

    def __init__(self, module: str, arguments: Sequence[str] = (), said: bytes = b"") -> None:
        lifeline, self._lifeline = os.pipe()
        self._beats, beats = os.pipe()
        self._output, output = os.pipe()
        heard, self._said = os.pipe()
        theirs = (lifeline, beats)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, theirs), *arguments],
                stdin=heard,
                stdout=output,
                stderr=output,
                pass_fds=theirs,
                start_new_session=True,
            )
        finally:
            for fd in (*theirs, output, heard):
                os.close(fd)
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._said, "wb") as pipe:
            pipe.write(said)
        for fd in (self._beats, self._output):
            os.set_blocking(fd, False)
        self._open = [self._lifeline, self._beats, self._output]
        self._printed = bytearray()
        self._bytes = 0
        self.beats = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def over(self) -> bool:
        """Whether it has ended; what it said by now is taken in."""
        ended = self.process.poll() is not None
        self._listen()
        return ended

    @property
    def status(self) -> int:
        """Its exit status; minus a signal's number if that ended it."""
        code = self.process.returncode
        assert code is not None, "it has ended"
        return code

    def interrupt(self) -> None:
        """As Ctrl-C would."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def output(self) -> str:
        """What it printed last."""
        return self._printed.decode(errors="replace")

    def output_since(self, count: int) -> tuple[bytes, int]:
        """What it printed after so many bytes, as far as it is kept; and how many there are by now."""
        kept = bytes(self._printed)
        return kept[max(0, len(kept) - (self._bytes - count)) :] if self._bytes > count else b"", self._bytes

    def last_words(self) -> tuple[str, ...]:
        """The last lines that it printed."""
        lines = [line.strip()[:200] for line in self.output().splitlines() if line.strip()]
        return tuple(lines[-_LINES:])

    def end(self) -> None:
        """Kills it and what is left of its session; the second time it does nothing."""
        if not self._open:
            return
        self._listen()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _listen(self) -> None:
        """Takes in beats and output, as much as there is."""
        if self._open:
            self.beats += len(_read(self._beats))
            said = _read(self._output)
            self._bytes += len(said)
            self._printed += said
            del self._printed[:-OUTPUT_BYTES_MAX]


def _read(fd: int) -> bytes:
    """What a pipe holds."""
    data = bytearray()
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, _READ_BYTES):
            data += piece
    return bytes(data)


def main() -> None:
    """Runs a command of slotfuzz."""
    lifeline, beats, *words = sys.argv[1:]
    die_with_parent(int(lifeline))
    os.set_inheritable(int(beats), False)  # the lifeline stays: a command may become another program, as stress does
    from fuzz.__main__ import main as slotfuzz

    slotfuzz(words, prog_name="slotfuzz")


if __name__ == "__main__":
    main()
