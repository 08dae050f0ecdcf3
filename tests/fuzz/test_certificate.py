"""A certificate says what was exercised and what was not, and claims no more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzz.campaign.folder import Campaign, Folder, Session, write_json
from fuzz.campaign.tallies import Shard
from fuzz.certificate import Certificate, certificate, certificate_page
from fuzz.judge import Judge
from fuzz.pages.campaign import read_state
from targets.registry import TargetSpec
from tests.browsing import chromium, looks, ugly
from tests.fuzz.scripted import Honest, Scripted


def made(
    out: Path, *, schedules: int = 60, undecided: tuple[str, ...] = (), target: str = "mymodule:factory"
) -> Certificate:
    """The certificate of a campaign of one session."""
    session = Session(workers=1, began_s=1.0, ended_s=9.0, seconds=8.0, shards=[0], undecided=list(undecided))
    folder, factory = Folder(out), Scripted(Honest)
    folder.save(Campaign(target=TargetSpec(target), settings={}, seed=1, next_shard=1, sessions=[session]))
    write_json(folder.tally(0), Shard(number=0, schedules=schedules, mechanisms={"slot_reuse": 3}))
    return certificate(read_state(folder), factory, Judge(factory).reference({}), 0)


def test_a_pass_has_its_bound_and_what_it_says_nothing_of(tmp_path: Path) -> None:
    told = made(tmp_path)
    assert told.verdict == "PASS"
    assert told.residual.failing_share_max_95 == 3 / 60
    assert told.exercised == {"slot_reuse": 3}
    assert "id_reused" in told.never
    open_ones = "\n".join(told.residual.open)
    assert "never happened, so nothing is known of it: join_while_decoding" in open_ones
    assert "slots are not accounted for" in open_ones
    assert "logits are not shown" not in open_ones
    assert open_ones.endswith("your own traffic: schedules were drawn, not recorded from it")
    assert told.dose_why == "leaks are planted in the built-in decoder of causal LMs only"
    assert msgspec.json.decode(msgspec.json.encode(told), type=Certificate) == told


@pytest.mark.parametrize(("schedules", "undecided"), [(0, ()), (60, ("a schedule ends every worker",))])
def test_what_is_no_pass_has_no_bound(tmp_path: Path, schedules: int, undecided: tuple[str, ...]) -> None:
    told = made(tmp_path, schedules=schedules, undecided=undecided)
    assert told.verdict == "UNKNOWN"
    assert told.residual.failing_share_max_95 is None
    page = certificate_page(told)
    assert "the verdict is no pass" in page
    assert "nothing found" not in page


def test_a_built_in_target_has_a_dose_and_a_response(tmp_path: Path) -> None:
    assert made(tmp_path, target="slots").dose_why == "it was not asked for"


@pytest.mark.slow
def test_the_page_can_be_read_in_light_and_dark_wide_and_narrow(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(certificate_page(made(tmp_path)))
    with chromium() as browser:
        for look, page in looks(browser, path.as_uri()):
            assert ugly(page) == [], look
