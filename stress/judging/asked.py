"""Asked: what of a run is judged, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stress.wording import Dialect
from targets.protocol import Factory, Setting
from targets.registry import TargetSpec


@dataclass(frozen=True, kw_only=True)
class Verifying:
    """What is judged, and by whom.

    Attributes:
        workers: Judges in processes of their own; 0 for one in this process.
        follow: Whether transcripts still grow. It ends when a signal says so, or nothing has come for `quiet_s`.
        account: The served target's own account, where there is one.
        foreign: Whether something else than `slotfuzz serve` was asked, which may draw other noise when it samples.
        repros_max: So many bugs are made repros of.
        url: Of the live endpoint, which is asked again for what was wrong; None where it is not.
        dialect: Which fields it is asked with; None for what its list of models says.
    """

    folder: Path
    spec: TargetSpec
    factory: Factory
    settings: dict[str, Setting]
    workers: int
    follow: bool
    quiet_s: float
    account: Path | None
    repros_max: int
    foreign: bool = False
    url: str | None = None
    dialect: Dialect | None = None
    api_key: str | None = None
