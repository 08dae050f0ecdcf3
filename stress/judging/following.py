"""Following: transcripts as they lie on disk, read once each, while they grow or afterwards.

Nothing is read before there is somebody to judge it: however far a judge lags, what waits lies on disk and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from stress.transcript import Begun, Heard, Line
from targets.protocol import BadInput

_DECODER = msgspec.json.Decoder(Line)


class Response(NamedTuple):
    """A line that says all that was heard of a request, as it stands in the file."""

    source: str
    number: int
    raw: bytes


class Following:
    """Reads the transcripts of one folder.

    Attributes:
        open: Requests that were sent and of which nothing more was heard yet, by transcript and number.
        responses: As many were read, those that had been judged before included.
        unreadable: Whole lines that are no lines of a transcript: (where, why) each.
        last_s: When the last request was sent, on the clients' clock.
    """

    def __init__(self, folder: Path, done: Collection[tuple[str, int]] = ()) -> None:
        self.folder = folder / "transcripts"
        if not self.folder.is_dir():
            raise BadInput("FOLDER", "a run's folder, in which there is a folder `transcripts`", folder)
        self.done = done
        self.open: dict[tuple[str, int], Begun] = {}
        self.responses = 0
        self.unreadable: list[tuple[str, str]] = []
        self.last_s = 0.0
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[Response]:
        """What has come since the last time, and was not judged before. May be left off anywhere."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    where = self._offsets.get(path, 0)
                    self._offsets[path] = where + len(raw)
                    response = self._take(path.stem, raw, where)
                    if response is not None:
                        yield response

    def again(self) -> Iterator[Response]:
        """All responses, from the beginning, those that were judged before included."""
        return Following(self.folder.parent).read()

    def _take(self, source: str, raw: bytes, where: int) -> Response | None:
        try:
            line = _DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.unreadable.append((f"{source}.jsonl, byte {where}", str(error)))
            return None
        if isinstance(line, Begun):
            self.open[source, line.number] = line
            self.last_s = max(self.last_s, line.sent_s)
            return None
        name = (source, line.exchange.number)
        self.open.pop(name, None)
        self.responses += 1
        self.last_s = max(self.last_s, line.exchange.sent_s)
        return None if name in self.done else Response(*name, raw)


def decoded(response: bytes) -> Heard:
    """The line that a response is."""
    line = _DECODER.decode(response)
    assert isinstance(line, Heard), "only these are responses"
    return line
