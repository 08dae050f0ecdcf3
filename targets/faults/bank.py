"""Faults: planted bugs, each a small change to the real decoder, modelled on a real report.

A fault is a set of mixins, one for each part of the decoder that it changes. Planting puts the mixin in front of the
part's class, so that faults combine, and the decoder knows nothing of them. The *honest twin* is the same mixin with its
probe set to honest: it takes the same way and does the right thing, which shows that the way itself is not what is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from targets.decoder import DECODERS, Parts
from targets.protocol import CheckName, Kind, Request, Schedule, Setting, Step, Submit

PREFILLS_TOGETHER = ("tiny", "tiny-qwen3", "tiny-gemma3", "tiny-mistral", "tiny-gpt2", "tiny-mixtral")
"""Rotary and learned positions, full and sliding masks: prompts of unequal length share a forward."""
EVERYWHERE = (*PREFILLS_TOGETHER, "tiny-bloom")
"""ALiBi as well, whose mask has columns only and which has no position ids: each prompt has a forward of its own."""


class Probe:
    """Whether a planted fault did anything: a fault that is a dead store proves nothing.

    Attributes:
        honest: Do the right thing instead.
        reached: How often the changed code ran.
        changed: How often it made a difference to the decoder's state.
    """

    def __init__(self, honest: bool = False) -> None:
        self.honest = honest
        self.reached = 0
        self.changed = 0

    def reach(self) -> None:
        """The changed code runs."""
        self.reached += 1

    def change(self, differs: bool = True) -> None:
        """The changed code leaves something else behind than the right one would."""
        self.changed += differs


@dataclass(frozen=True)
class Fault:
    """One planted bug.

    Attributes:
        name: As for `--fault`; with underscores, the attribute under which its mixins find their probe.
        group: The class of bug.
        modelled_on: The real report or article it retells.
        doc: What is changed, in a sentence.
        mixins: Part name ("store", "runner", …) to the mixin that changes it.
        smallest: For each kind that may rightly come of it (at most two), the smallest schedule known to show it.
        checks: The checks that may rightly find it.
        models: Models on which it shows, the default first.
        settings: Knobs that must be set for it to show.
        targets: The built-in targets that it can be planted in, the default first.
    """

    name: str
    group: str
    modelled_on: str
    doc: str
    mixins: Mapping[str, type[Any]]
    smallest: Mapping[Kind, Schedule]
    checks: tuple[CheckName, ...]
    models: tuple[str, ...] = EVERYWHERE
    settings: Mapping[str, Setting] = field(default_factory=dict)
    targets: tuple[str, ...] = ("slots",)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that may rightly come of it."""
        return tuple(self.smallest)

    def plant(self, parts: Parts | None = None, probe: Probe | None = None) -> Parts:
        """The parts with this fault in them; an honest probe plants the twin."""
        return _plant(self.name, self.mixins, parts or DECODERS[self.targets[0]], probe)


@dataclass(frozen=True)
class Quirk:
    """Planted in the same way, and no bug: something that a real engine may do and that must not be found.

    Attributes:
        name, group, modelled_on, doc, mixins: As of a fault.
        models: Models on which it does anything, the default first.
        targets: As of a fault.
    """

    name: str
    group: str
    modelled_on: str
    doc: str
    mixins: Mapping[str, type[Any]]
    models: tuple[str, ...] = EVERYWHERE
    targets: tuple[str, ...] = ("slots",)

    def plant(self, parts: Parts | None = None, probe: Probe | None = None) -> Parts:
        """The parts with this quirk in them; an honest probe plants the twin."""
        return _plant(self.name, self.mixins, parts or DECODERS[self.targets[0]], probe)


def _plant(name: str, mixins: Mapping[str, type[Any]], parts: Parts, probe: Probe | None) -> Parts:
    """The parts with each mixin in front of the class it changes, and the probe where the mixins look for it."""
    attribute = {name.replace("-", "_"): probe or Probe()}
    changes = {}
    for part, mixin in mixins.items():
        base = getattr(parts, part)
        bases = (base,) if issubclass(base, mixin) else (mixin, base)  # two faults may have a mixin in common
        changes[part] = type(mixin.__name__, bases, dict(attribute))
    return parts.with_(**changes)


def in_front(part: Any, mixin: type[Any], **probes: Probe) -> None:
    """Puts a mixin, with its probe, in front of the class of an object that a part has made for itself, as a pool is."""
    bases = (type(part),) if issubclass(type(part), mixin) else (mixin, type(part))
    part.__class__ = type(mixin.__name__, bases, dict(probes))


def request(prompt: tuple[int, ...], new: int, client_id: int | None = None) -> Submit:
    """A Submit of a small request, for the smallest known schedules."""
    return Submit(Request(prompt=prompt, max_new_tokens=new, client_id=client_id))


def schedule(*ops: Any, **settings: Setting) -> Schedule:
    """A schedule of these ops."""
    return Schedule(ops=ops, settings=settings)


def at_once(*requests: Submit, **settings: Setting) -> Schedule:
    """Requests handed in together, nothing else."""
    return schedule(*requests, **settings)


def one_after_another(*requests: Submit, **settings: Setting) -> Schedule:
    """Requests handed in a step apart."""
    ops: list[Any] = []
    for submit in requests:
        ops += [submit, Step()]
    return schedule(*ops[:-1], **settings)
