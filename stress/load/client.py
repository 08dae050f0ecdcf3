"""The client: connections to one endpoint, on gevent. It hangs up by closing its connection, as real clients do."""

from __future__ import annotations

import gevent
import msgspec
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError, HTTPSocketPoolResponse

from stress.chunks import error_of, read_chunk
from stress.load.hearing import Hearing

CONNECT_S = 10.0
BLOCK_BYTES = 65_536
DATA = b"data:"
DONE = b"[DONE]"
REFUSED = (400, 500)
"""A status from the first on and below the second is a refusal; and so is 503."""
OVERLOADED = 503


class HungUpError(Exception):
    """The time after which the client of a request hangs up."""


class Client:
    """Connections that one user has, and uses again.

    Attributes:
        silence_s: What says nothing for so long will say nothing more.
    """

    def __init__(self, host: str, key: str | None, silence_s: float, connections: int = 1) -> None:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self.silence_s = silence_s
        self.http = HTTPClient.from_url(
            host,
            headers=headers,
            concurrency=connections,
            connection_timeout=CONNECT_S,
            network_timeout=silence_s,
            block_size=BLOCK_BYTES,
        )

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        self.http.close()

    def get(self, path: str) -> bytes:
        """The body of a page.

        Raises:
            OSError: where there is none.
        """
        try:
            with self.http.get(path) as response:
                body = response.read()
                if response.status_code != 200:
                    raise OSError(f"{path} has status {response.status_code}")
                return body
        except HTTPParseError as error:
            raise OSError(f"{path} is not answered: {error}") from error

    def ask(self, path: str, body: bytes, hearing: Hearing) -> None:
        """Sends a request and hears it out; how it ended stands in the hearing, whatever happens."""
        hang_up = hearing.ask.hang_up_s
        try:
            with gevent.Timeout(hang_up, HungUpError):
                self._ask(path, body, hearing)
        except HungUpError:
            hearing.end("cancelled", "hung up")
        except TimeoutError as error:
            hearing.end("cut", f"nothing was heard for {self.silence_s:g} s: {error}")
        except (OSError, HTTPParseError) as error:
            hearing.end("cut", f"the connection broke: {error}")
        except BaseException:
            hearing.end("cancelled", "the run ended")
            raise

    def _ask(self, path: str, body: bytes, hearing: Hearing) -> None:
        connections = self.http._connection_pool
        try:
            connections.return_socket(connections.get_socket())  # what fails from here on had been sent
        except OSError as error:
            hearing.end("unreached", f"no connection: {error}")
            return
        response = self.http.post(path, body=body)
        hearing.status = response.status_code
        with response:
            if response.status_code != 200:
                refused = REFUSED[0] <= response.status_code < REFUSED[1] or response.status_code == OVERLOADED
                hearing.end("refused" if refused else "failed", error_of(response.read()))
            elif str(response.get("content-type", "")).startswith("text/event-stream"):
                _hear_stream(response, hearing)
            else:
                _hear_whole(response, hearing)


def _hear_whole(response: HTTPSocketPoolResponse, hearing: Hearing) -> None:
    data = response.read()
    try:
        hearing.take(read_chunk(data))
    except msgspec.DecodeError as error:
        hearing.end("failed", f"the body is no answer: {error}")
        return
    _conclude(hearing)


def _hear_stream(response: HTTPSocketPoolResponse, hearing: Hearing) -> None:
    """Hears events until the stream, or the client, has had enough."""
    while line := response.readline(b"\n"):
        if not line.startswith(DATA):
            continue
        data = line[len(DATA) :].strip()
        if data == DONE:
            response.read()  # the end of the message, so that the connection can be used again
            break
        try:
            chunk = read_chunk(data)
        except msgspec.DecodeError as error:
            hearing.end("failed", f"an event is no answer: {error}")
            return
        if chunk.error is not None:
            hearing.end("failed", error_of(data))
            return
        hearing.take(chunk)
        if hearing.satisfied:
            hearing.end("cancelled", "hung up")
            return
    _conclude(hearing)


def _conclude(hearing: Hearing) -> None:
    """An answer that never says why it ended may lack anything."""
    if hearing.finish_reason is None:
        hearing.end("cut", "the answer ended without a finish reason")
    else:
        hearing.end("answered")
