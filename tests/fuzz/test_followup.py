"""Follow up: a failure is named after the cause that its kind speaks of, or after none."""

from __future__ import annotations

import pytest

from fuzz.conductor import run_trio
from fuzz.followup import FollowUp
from fuzz.judge import Judge, first_of
from oracle.checks import ROUTINE
from targets.decoder import DecoderFactory
from targets.faults import FAULTS, find_faults, planted
from targets.models import Model
from targets.protocol import CheckName, Kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "site"),
    [
        (("late-token",), "result: another request's, of an earlier step"),
        (("heads-share", "late-token"), ""),
    ],
    ids=["alone", "behind what is wrong alone"],
)
def test_a_leak_is_not_named_after_what_is_wrong_without_it(tiny: Model, faults: tuple[str, ...], site: str) -> None:
    judge = Judge(DecoderFactory(tiny, planted(find_faults(faults))))
    follow = FollowUp(judge, {}, ROUTINE)

    async def named() -> str:
        judgement = await judge.judge(FAULTS["late-token"].smallest[Kind.LEAK], thorough=True)
        finding = first_of(judgement.findings, Kind.LEAK, CheckName.SWAP)
        assert finding is not None
        return await follow.site(judgement, finding)

    assert run_trio(named) == site
