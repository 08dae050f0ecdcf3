"""Ways: how a trial makes up its schedules, and which checks it asks. Ours, ours without a part of it, and the baselines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fuzz.fault_bench import baselines
from fuzz.search import drawn
from fuzz.strategies import Space, batches, schedules
from oracle.checks import ROUTINE
from targets.protocol import CheckName, Schedule

OURS = "slotfuzz"


@dataclass(frozen=True)
class Way:
    """One of them.

    Attributes:
        doc: What it does, in a phrase.
        draw: Endless schedules for a space and a seed.
        checks: What each schedule is asked.
    """

    doc: str
    draw: Callable[[Space, int], Iterator[Schedule]]
    checks: tuple[CheckName, ...] = ROUTINE


def _without(space: Space, seed: int, swarm: bool = True, motifs: bool = True) -> Iterator[Schedule]:
    return batches(schedules(space, swarm, motifs), seed)


WAYS: dict[str, Way] = {
    OURS: Way("as slotfuzz run does", drawn),
    "no-swarm": Way("with every feature on in every schedule", functools.partial(_without, swarm=False)),
    "no-motifs": Way("with nothing but random mixes of requests", functools.partial(_without, motifs=False)),
    "no-swap": Way(
        "without the replay that exchanges tokens", drawn, tuple(name for name in ROUTINE if name is not CheckName.SWAP)
    ),
    "uniform": Way("everything drawn evenly, as thousands of interleavings by hand", baselines.uniform),
    "all-at-once": Way("prompts handed in together, as engines' own tests do", baselines.all_at_once),
    "fixed-shapes": Way("eight kinds of event of fixed sizes and no cancel, as the nearest rival", baselines.fixed_shapes),
    "state-machine": Way("a plain rule-based state machine of Hypothesis", baselines.state_machine),
}
