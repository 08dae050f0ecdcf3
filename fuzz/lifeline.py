"""Lifeline: a pipe on which nothing is ever said. Who holds one end of it dies when nobody holds the other.

Light on purpose: a process asks for this before it imports anything that takes long.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys

_F_SETSIG = 10


def die_with_parent(lifeline: int) -> None:
    """Has the kernel kill this process once nobody holds the other end of a pipe on which nothing is ever said.

    (PR_SET_PDEATHSIG would do so at the end of the parent's *thread*; a thread of ours would need the GIL, which a target
    that hangs in C may never give back.)
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    hung_up = select.poll()
    hung_up.register(lifeline)
    if hung_up.poll(0):  # it was gone before
        sys.exit(1)
