"""Plants a fault, or its honest twin, in the built-in decoder, with a probe that tells what became of it."""

from __future__ import annotations

from fuzz.conductor import run_trio
from fuzz.fault_bench.attempts import stage_of
from fuzz.judge import Judge, Judgement
from fuzz.stage import Renewing
from oracle.checks import CHECKS
from targets.decoder import DecoderFactory
from targets.faults import FAULTS, Probe
from targets.models import Model, find_model
from targets.protocol import Kind, Schedule, submissions

NAMES = tuple(FAULTS)
SMALLEST = [(name, kind) for name in NAMES for kind in FAULTS[name].kinds]
"""Every fault with every kind that it declares."""
SEARCHED = tuple({fault.group: fault.name for fault in reversed(FAULTS.values())}.values())
"""One fault of each class: what searches cost is for the bench, which asks it of all."""


def plant(tiny: Model, name: str, honest: bool = False) -> tuple[DecoderFactory, Probe]:
    """A factory whose decoder has the fault, or its twin, and the probe that is in it."""
    fault, probe = FAULTS[name], Probe(honest)
    model = tiny if fault.models[0] == tiny.name else find_model(fault.models[0])
    return DecoderFactory(model, fault.plant(probe=probe), fault.targets[0]), probe


def smallest(name: str, kind: Kind) -> Schedule:
    """The smallest schedule known on which the fault shows as this kind, with the settings that the fault needs."""
    known = FAULTS[name].smallest[kind]
    return Schedule(ops=known.ops, settings={**FAULTS[name].settings, **known.settings})


def judged(factory: DecoderFactory, schedule: Schedule) -> Judgement:
    """What all checks say of a schedule, with every victim tried in turn, on targets that share nothing."""

    async def judge() -> Judgement:
        return await Judge(factory, Renewing(stage_of(factory))).judge(schedule, tuple(CHECKS), thorough=True)

    return run_trio(judge)


def size(schedule: Schedule) -> tuple[int, int]:
    """Requests, and prompt and new tokens together."""
    requests = submissions(schedule)
    return len(requests), sum(len(request.prompt) + request.max_new_tokens for request in requests)
