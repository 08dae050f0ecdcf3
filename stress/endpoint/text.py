"""Text: the pieces of an answer as they come, cut where a stop string begins.

A stop string is looked for in the text, across pieces: what may still become one is held back, so that nothing of it is ever
told. It ends the answer with the character that completes it; where several are complete with the same character, the one
that begins first counts. So the answer does not depend on how the text comes in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes text on until a stop string is complete.

    Attributes:
        found: Whether one was.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.found = False
        self._held = ""

    def push(self, piece: str) -> str:
        """What may be told, now that `piece` has come."""
        if not self.stops:
            return piece
        text = self._held + piece
        hits = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if hits:
            self.found, self._held = True, ""
            return text[: min(hits)[1]]
        held = self._begun(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back, now that nothing more will come."""
        text, self._held = self._held, ""
        return text

    def _begun(self, text: str) -> int:
        """How many of the last characters a stop string may begin with."""
        longest = min(len(text), max(map(len, self.stops)) - 1)
        return next(
            (count for count in range(longest, 0, -1) if any(stop.startswith(text[-count:]) for stop in self.stops)), 0
        )
