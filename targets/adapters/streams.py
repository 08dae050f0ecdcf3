"""Streams: requests over HTTP whose answers come piece by piece, each read by a thread, all heard in one place.

The engine decides by itself when it does what. Pieces are heard in the order in which they arrived here; `wait` is the only
place where anybody waits for them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec


class Piece(msgspec.Struct, frozen=True):
    """What came of one request.

    Attributes:
        data: One event of the stream as JSON; None at its end.
        status: The HTTP status, where it is none of 200; the body is in `data` then.
        broken: How the connection broke, if it did.
    """

    submission: int
    data: Any = None
    status: int = 200
    broken: str = ""


class Streams:
    """The live streams of one server. To be closed."""

    def __init__(self, url: str, timeout_s: float, headers: dict[str, str] | None = None) -> None:
        self.address = urlsplit(url)
        self.timeout_s = timeout_s
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self._pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._open: dict[int, http.client.HTTPConnection] = {}
        self._left: set[int] = set()
        self._threads: list[threading.Thread] = []

    def ask(self, submission: int, path: str, body: dict[str, Any]) -> None:
        """Sends a request, now; its answer is read by a thread of its own."""
        connection = self.connect()
        self._open[submission] = connection
        try:
            connection.request("POST", path, json.dumps(body), self.headers)
        except OSError as error:
            self._pieces.put(Piece(submission, broken=f"{type(error).__name__}: {error}"))
            return
        thread = threading.Thread(target=self._read, args=(submission, connection), daemon=True)
        self._threads.append(thread)
        thread.start()

    def leave(self, submission: int) -> None:
        """Closes a request's connection: how a client gives up. Nothing that still comes of it is heard."""
        self._left.add(submission)
        connection = self._open.pop(submission, None)
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> list[Piece]:
        """What has come; waits so long for the first piece if there is none."""
        until = time.monotonic() + seconds
        heard: list[Piece] = []
        with contextlib.suppress(queue.Empty):
            while not heard:  # what comes of streams that were left is no news
                heard = self._take(self._pieces.get(timeout=max(0.0, until - time.monotonic())))
            while True:
                heard += self._take(self._pieces.get_nowait())
        return heard

    def _take(self, piece: Piece) -> list[Piece]:
        return [] if piece.submission in self._left else [piece]

    def get(self, path: str) -> bytes:
        """The body of a plain GET."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers=self.headers)
            return connection.getresponse().read()
        finally:
            connection.close()

    def post(self, path: str, body: dict[str, Any]) -> int:
        """The status of a plain POST, once its answer has come."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body), self.headers)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def close(self) -> None:
        """Leaves every stream, and waits for the threads."""
        for submission in list(self._open):
            self.leave(submission)
        for thread in self._threads:
            thread.join(self.timeout_s)

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        return kind(self.address.hostname or "127.0.0.1", self.address.port, timeout=self.timeout_s)

    def _read(self, submission: int, connection: http.client.HTTPConnection) -> None:
        try:
            response = connection.getresponse()
            if response.status != 200:
                self._pieces.put(Piece(submission, _json(response.read()), response.status))
            else:
                for data in _events(response):
                    self._pieces.put(Piece(submission, data))
                self._pieces.put(Piece(submission))
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:  # what a closed socket raises
            self._pieces.put(Piece(submission, broken=f"{type(error).__name__}: {error}"))
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """The events of a stream, as JSON; an error that comes in the stream is one of them."""
    for line in response:
        word, _, data = line.decode(errors="replace").strip().partition(":")
        if word in ("data", "error") and data.strip() and data.strip() != "[DONE]":
            yield json.loads(data)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:500]
