"""A campaign's page says what is new, what was exercised and what was not; read from the folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fuzz.__main__ import main
from fuzz.campaign.folder import FAILED, FIXED, Bug, Campaign, Folder, Session, write_json
from fuzz.campaign.tallies import Shard
from fuzz.pages.campaign import campaign_page, read_state
from fuzz.repro import Repro, save
from oracle.finding import Verdict
from targets.protocol import Kind, LifeCycle
from targets.registry import TargetSpec
from tests.browsing import chromium, looks, ugly


def bug(signature: str, status: str, first_s: float) -> Bug:
    return Bug(
        signature=signature,
        id="0123456789ab",
        kind=Kind.LEAK,
        what="request #1 depends on what #0 asked",
        status=status,
        first_seen_s=first_s,
        last_seen_s=first_s,
    )


@pytest.fixture
def folder(repro: Repro, tmp_path: Path) -> Folder:
    """A campaign of two sessions: in the second one, something new was found and something old is fixed."""
    found = bug("LEAK swap: late", FAILED, 200.0)
    found.id = repro.id
    campaign = Campaign(
        target=TargetSpec(faults=("late-token",)),
        settings={"slots": 2},
        seed=7,
        next_shard=2,
        cycles=(LifeCycle(slots=2, chunks=True, pipelined=True),),
        sessions=[
            Session(workers=1, began_s=100.0, ended_s=150.0, seconds=50.0, shards=[0]),
            Session(workers=1, began_s=190.0, seconds=10.0, shards=[1], deaths=["shard 1 was killed by SIGKILL"]),
        ],
        bugs=[bug("ECHO echo: <old>", FIXED, 120.0), found],
    )
    made = Folder(tmp_path)
    save(repro, made.repros)
    made.save(campaign)
    write_json(
        made.tally(0), Shard(number=0, schedules=100, mechanisms={"slot_reuse": 40}, seen={2: {"submit a, freed b": 1}})
    )
    write_json(made.tally(1), Shard(number=1, schedules=30, mechanisms={"slot_reuse": 2, "stop": 1}))
    return made


def test_the_page_tells_new_from_old_and_what_never_happened(folder: Folder) -> None:
    state = read_state(folder)
    page = campaign_page(state)
    assert state.verdict is Verdict.FAIL
    assert page.index("LEAK swap: late") < page.index("ECHO echo: &lt;old&gt;")
    assert '<span class="tag bad">1 new</span>' in page
    assert "30 in the last session, 130 in all" in page
    assert "submit #0  prompt [1]  new 1" in page
    assert "never happened</span> join_while_decoding" in page
    assert "shard 1 was killed by SIGKILL" in page


@pytest.mark.parametrize(
    ("status", "undecided", "schedules", "verdict"),
    [
        (FIXED, [], 30, Verdict.PASS),
        (FIXED, ["a schedule ends every worker"], 30, Verdict.UNKNOWN),
        (FIXED, [], 0, Verdict.UNKNOWN),
        ("ERROR", [], 30, Verdict.UNKNOWN),
        ("UNCONFIRMED", [], 30, Verdict.UNKNOWN),
        (FAILED, ["a schedule ends every worker"], 30, Verdict.FAIL),
    ],
)
def test_what_could_not_be_judged_is_never_a_pass(
    folder: Folder, status: str, undecided: list[str], schedules: int, verdict: Verdict
) -> None:
    campaign = folder.begun()
    assert campaign is not None
    campaign.bugs[1].status = status
    campaign.sessions[-1].undecided = undecided
    folder.save(campaign)
    write_json(folder.tally(1), Shard(number=1, schedules=schedules))
    assert read_state(folder).verdict is verdict


@pytest.mark.slow
def test_report_writes_the_page_and_says_where(folder: Folder) -> None:
    told = CliRunner().invoke(main, ["report", str(folder.out)])
    assert (told.exit_code, told.output) == (1, f"red\npage: {folder.out / 'report.html'}\n")
    assert "of 128 feasible" in (folder.out / "report.html").read_text()
    for none in (folder.out / "repros", folder.out / "campaign.json"):
        nothing = CliRunner().invoke(main, ["report", str(none)], prog_name="slotfuzz")
        assert (nothing.exit_code, nothing.stderr) == (2, f"OUT must be the folder of a campaign, got {none}\n")


@pytest.mark.slow
def test_the_page_can_be_read_in_light_and_dark_wide_and_narrow(folder: Folder) -> None:
    path = folder.out / "page.html"
    path.write_text(campaign_page(read_state(folder)))
    with chromium() as browser:
        for look, page in looks(browser, path.as_uri()):
            page.get_by_text("the smallest schedule").first.click()
            assert ugly(page) == [], look
