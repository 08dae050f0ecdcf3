"""Shard's main: the process of one worker of a campaign, started by the supervisor, never by hand.

    python -P -m fuzz.campaign.shard_main FD_LIFELINE FD_BEATS < ORDER

It ends with its supervisor, from its first moment on: what takes long to import comes after that. Exit codes: 0 the order is
carried out, or Ctrl-C came; 2 the target can't be built.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys

from fuzz.lifeline import die_with_parent


def main() -> None:
    """Carries out one order."""
    lifeline, beats = map(int, sys.argv[1:])
    die_with_parent(lifeline)
    for fd in (lifeline, beats):
        os.set_inheritable(fd, False)
    os.set_blocking(beats, False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background may have inherited deafness
    faulthandler.enable(all_threads=False)
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(_carry_out(beats))


def _carry_out(beats: int) -> int:
    """Fuzzes as the order on stdin says; returns the exit code."""
    import msgspec

    from fuzz.campaign.shard import Order, run_shard
    from fuzz.run import set_threads
    from targets.protocol import BadInput

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.path[:] = order.path
    set_threads()

    def beat() -> None:
        with contextlib.suppress(BlockingIOError):  # nobody has listened for a while: they know that we live
            os.write(beats, b".")

    try:
        run_shard(order, beat)
    except BadInput as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    main()
