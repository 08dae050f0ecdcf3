"""A target that goes wrong only once it has been used for a while, and its honest twin: `--target tests.fuzz.worn:worn`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from targets.attention import Attention, AttentionFactory, Cache, Network, Server
from targets.protocol import Event, Reason, Setting, check_settings

PLACES = 24
"""A table of caches has so many places: the request after as many finds there what the first one left."""


class Worn(Server):
    """Caches lie in a table by the number of their request, and whoever comes to a place goes on with what lies there."""

    tidy = False

    def __init__(self, network: Network, requests_max: int, places: int) -> None:
        super().__init__(network, requests_max)
        self.places = places
        self.table: dict[int, Cache | None] = {}

    def advance(self, submission: int) -> list[Event]:
        """One token for one request; with its first one it takes its place."""
        if not self.answers[submission]:
            self.caches[submission] = self.table.get(submission % self.places)
        return super().advance(submission)

    def end(self, submission: int, reason: Reason) -> list[Event]:
        """Leaves its place, as it is or empty."""
        self.table[submission % self.places] = None if self.tidy else self.caches.get(submission)
        return super().end(submission, reason)


class Tidy(Worn):
    """Places are empty when they are left."""

    tidy = True


class WornFactory(AttentionFactory):
    """Opens either; says that fresh ones are dear, so that several schedules are played on each."""

    control = msgspec.structs.replace(AttentionFactory.control, in_a_row=8)

    def __init__(self, server: type[Worn], places: int = PLACES) -> None:
        super().__init__(server.__name__.lower(), Attention)
        self.places = places
        self.server = server

    def open(self, settings: Mapping[str, Setting]) -> Server:
        """A fresh one, in which nobody has taken a place."""
        check_settings(self.knobs, settings)
        return self.server(Network(), int(settings.get("requests_max", 4)), self.places)


def worn() -> WornFactory:
    """Goes wrong with the twenty-fifth request."""
    return WornFactory(Worn)


def tidy() -> WornFactory:
    """Does not."""
    return WornFactory(Tidy)
