"""On which position schemes a fault shows: rotary is every other test's, learned positions and ALiBi are these."""

from __future__ import annotations

import pytest

from fuzz.conductor import run_trio
from fuzz.fault_bench.attempts import stage_of
from fuzz.judge import Judge
from targets.decoder import FAMILIES, DecoderFactory
from targets.faults import FAULTS
from targets.models import find_model
from tests.quality.planting import smallest


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-bloom"])
def test_a_fault_shows_on_the_models_that_it_declares_and_on_no_other(model: str) -> None:
    found = find_model(model)
    reference = Judge(DecoderFactory(found)).reference({})
    shows = []
    for fault in FAULTS.values():
        if fault.targets[0] in FAMILIES:
            continue  # it runs no causal LM
        if found.plan.prompts_alone and fault.plant().runner.together:
            continue  # its target takes no such network
        factory = DecoderFactory(found, fault.plant(), fault.targets[0])
        if not set(fault.settings) <= {knob.name for knob in factory.knobs}:
            continue  # a network without windows has no rings
        judge = Judge(factory, stage_of(factory))
        judge.reference = lambda settings: reference  # type: ignore[method-assign]  # one model, one rounding bound
        kinds = [
            any(run_trio(judge.same, smallest(fault.name, kind), kind, check) for check in fault.checks)
            for kind in fault.kinds
        ]
        if all(kinds):
            shows.append(fault.name)
    assert shows == [fault.name for fault in FAULTS.values() if model in fault.models]
