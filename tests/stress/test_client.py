"""The client of locust's users, in a process of its own: a request that was never sent is told from one that was lost."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.stress.locusts import ROOT, WAIT_S, free_port

pytestmark = pytest.mark.slow
SHORT_S, LONG_S = "0.2", "60"


def called(port: int, connect_s: str = LONG_S, silence_s: str = LONG_S) -> str:
    """How a request to this port ends."""
    command = [sys.executable, "-m", "tests.stress.calling", f"http://127.0.0.1:{port}", connect_s, silence_s]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=WAIT_S)
    return told.stdout.strip()


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A server that accepts nobody by itself."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def test_where_nobody_listens_nothing_is_reached() -> None:
    assert called(free_port()).startswith("unreached: no connection: ")


def test_who_waits_for_a_connection_in_vain_has_reached_nobody() -> None:
    with listening() as server, ExitStack() as crowd:
        for _ in range(2):  # the kernel takes one more in than it was told
            waiting = crowd.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        assert called(server.getsockname()[1], connect_s=SHORT_S).startswith("unreached: no connection: ")


def test_who_hears_nothing_once_connected_has_lost_an_answer() -> None:
    with listening() as server:
        assert called(server.getsockname()[1], silence_s=SHORT_S).startswith("cut: nothing was heard for 0.2 s: ")


def test_a_connection_that_is_closed_without_a_word_has_lost_an_answer() -> None:
    def close(server: socket.socket) -> None:
        taken, _ = server.accept()
        taken.recv(65_536)
        taken.close()

    with listening() as server:
        thread = threading.Thread(target=close, args=(server,))
        thread.start()
        assert called(server.getsockname()[1]).startswith("cut: the connection broke: ")
        thread.join()
