"""Loaded: what a run's folder says of its load, as far as it matters to who judges it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzz.commandline import read_settings
from stress.offer import Offer
from stress.wording import Dialect
from targets.models import named
from targets.protocol import BadInput, Factory, Setting, check_settings
from targets.registry import TargetSpec, default_model


class Loaded(msgspec.Struct, frozen=True):
    """A run's plan; other fields are passed over.

    Attributes:
        dialect: Which fields were asked for.
        served: What the endpoint said of itself; None where it is none of ours.
    """

    dialect: Dialect | None = None
    served: Offer | None = None


class Named(msgspec.Struct, frozen=True):
    """What the user says was served; None, or nothing, where the endpoint may say it."""

    target: str | None
    model: str | None
    faults: tuple[str, ...]


def read_loaded(folder: Path) -> Loaded:
    """What `run.json` says; nothing where somebody else than `slotfuzz stress` wrote the transcripts.

    Raises:
        BadInput: where it can't be read.
    """
    path = folder / "run.json"
    if not path.is_file():
        return Loaded()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Loaded)
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput("FOLDER", "one whose run.json can be read", folder, str(error)) from error


def spec_of(user: Named, offer: Offer | None) -> TargetSpec:
    """What was served: as the user says, else as the endpoint does. Of another target it says nothing.

    Raises:
        BadInput: where the endpoint names what only the user may.
    """
    if offer is None or user.target not in (None, offer.target):
        model = default_model(user.faults) if user.model is None else user.model
        return TargetSpec(user.target or "slots", model, user.faults)
    if user.target is None and ":" in offer.target:
        raise BadInput("--target", "given, as what is served is no target of slotfuzz's own", offer.target)
    if user.model is None and not named(offer.model):
        raise BadInput("--model", "given, as what is served is a file", offer.model)
    return TargetSpec(offer.target, user.model or offer.model, user.faults or offer.faults)


def settings_of(
    user: Named, offer: Offer | None, factory: Factory, sets: tuple[str, ...], flags: dict[str, str | None]
) -> dict[str, Setting]:
    """The knobs as the user says, the others as the endpoint does, of the same target."""
    typed = read_settings(factory.knobs, sets, flags)
    if offer is None or user.target not in (None, offer.target):
        return typed
    check_settings(factory.knobs, offer.settings)
    return {**offer.settings, **typed}
