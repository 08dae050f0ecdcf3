"""Offers: what `slotfuzz serve` says of itself in its list of models, so that who judges its answers plays the same target.

It is data of whoever answers, and chooses no code to run: a target of the user's own, or a model that is a file, is taken
only from the user.
"""

from __future__ import annotations

import msgspec

from targets.protocol.knobs import Setting


class Offer(msgspec.Struct, frozen=True):
    """What is served.

    Attributes:
        target: A target's name, or package.module:factory.
        model: A model's name, or a file's.
        faults: The bugs that are planted in it.
        settings: The knobs that do not stand at their default.
    """

    target: str
    model: str
    faults: tuple[str, ...] = ()
    settings: dict[str, Setting] = {}
