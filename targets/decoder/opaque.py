"""Opaque: a decoder whose rows and cells do not lie as an explanation reads them."""

from __future__ import annotations

from targets.decoder.engine import Decoder


class Opaque(Decoder):
    """It does not say whose its rows are.

    Either more attends than what it keeps cells of, or a row's n-th query and cell are not those of its n-th position.
    """

    inspect = None  # type: ignore[assignment]
