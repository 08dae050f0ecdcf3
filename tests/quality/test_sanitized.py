"""Under `sanitize` a fault gives no kind, by no check, that it does not declare; its honest twin gives nothing."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge, Judgement
from oracle.finding import Verdict
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model, find_model
from targets.protocol import CheckName, Kind, Schedule
from tests.oracle.handmade import LIFE
from tests.quality.planting import NAMES, SMALLEST, plant, smallest

ASKED = (CheckName.OWNERSHIP, CheckName.PROVENANCE, CheckName.RESIDUE)


def sanitized(factory: DecoderFactory, schedule: Schedule) -> Judgement:
    """What the checks that `sanitize` feeds say, with every poison."""
    schedule = msgspec.structs.replace(schedule, settings={**schedule.settings, "sanitize": True})

    async def judge() -> Judgement:
        return await Judge(factory).judge(schedule, ASKED, thorough=True)

    return run_trio(judge)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), SMALLEST, ids=lambda part: str(part))
def test_a_sanitized_fault_gives_only_what_it_declares(tiny: Model, name: str, kind: Kind) -> None:
    fault = FAULTS[name]
    factory, _ = plant(tiny, name)
    judgement = sanitized(factory, smallest(name, kind))
    assert all(found.kind in fault.kinds and found.check in fault.checks for found in judgement.findings), judgement.findings
    assert not judgement.crashed_checks
    assert not judgement.report.unknown


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_honest_twin_of_a_fault_passes_sanitized(tiny: Model, name: str) -> None:
    factory, _ = plant(tiny, name, honest=True)
    judgement = sanitized(factory, LIFE)
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, [])
    assert judgement.report.cells
    assert (judgement.report.poisoned, judgement.report.poisoned_undecided) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-gemma3", "tiny-mistral", "tiny-gpt2", "tiny-bloom", "tiny-mixtral", "tiny-bamba"])
def test_an_honest_decoder_passes_sanitized_on_every_kind_of_mask_and_state(model: str) -> None:
    judgement = sanitized(DecoderFactory(find_model(model)), LIFE)
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, [])
    assert judgement.report.cells
    assert judgement.report.poisoned == 2
