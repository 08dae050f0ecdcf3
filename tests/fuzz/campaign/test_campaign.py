"""Campaigns from end to end, with workers in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.campaign.crew import End, NearHand
from fuzz.campaign.folder import Folder
from fuzz.campaign.shard import Order
from fuzz.repro import load
from targets.protocol import Kind, submissions
from targets.registry import TargetSpec
from tests.fuzz.kills import killed
from tests.fuzz.scripted import ROOMS

CROWDED = ("--target", "tests.fuzz.scripted:crowded", "--in-process")


def run(out: Path, *words: object) -> Result:
    return CliRunner().invoke(main, ["run", "--out", str(out), *map(str, words)], prog_name="slotfuzz")


def told(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return fields


@pytest.mark.slow
@pytest.mark.long
def test_a_nightly_run_twice_replays_what_the_first_one_found_and_tries_other_schedules(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (*CROWDED, "--seed", 1, "--schedules", 16, "--workers", 2, "--resume")
    first = run(out, *words, "--json", tmp_path / "1.json")
    assert first.exit_code == 1, first.output
    (path,) = (out / "repros").iterdir()
    assert load(path).finding.what == "step raised IndexError: row 2 is out of range"
    second = run(out, *words, "--json", tmp_path / "2.json")
    assert second.exit_code == 1, second.output
    assert f"FAILED  {path}\n" in second.stdout
    before, after = told(tmp_path / "1.json"), told(tmp_path / "2.json")
    assert (before["schedules"], after["schedules"], after["campaign"]["schedules"]) == (16, 16, 32)
    assert not {*before["campaign"]["shards"]} & {*after["campaign"]["shards"]}
    assert [bug["times"] > 0 for bug in after["campaign"]["bugs"]] == [True]
    assert [finding["repro"] for finding in after["findings"]] == [str(path)]
    assert not (out / "found").exists()


@pytest.mark.slow
def test_workers_use_a_target_again_as_they_are_told_and_what_it_has_been_through_is_in_the_repro(tmp_path: Path) -> None:
    out = tmp_path / "out"
    used = ("--target", "tests.fuzz.scripted:full", "--in-process", "--in-a-row", 12)
    done = run(out, *used, "--seed", 1, "--schedules", 1, "--workers", 1)
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("seed 1, 1 schedules, each of 12 in a row on one target\n")
    (path,) = (out / "repros").iterdir()
    assert len(submissions(load(path).schedule)) == ROOMS + 1


@pytest.mark.slow
def test_a_target_that_takes_its_worker_with_it_is_tried_again_apart_and_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--target", "tests.fuzz.dying:aborting", "--in-process", "--seed", 1, "--schedules", 2, "--workers", 1)
    done = run(out, *words)
    assert "a worker ended: shard 0 was killed by SIGABRT" in done.stdout
    found = [load(path) for path in out.rglob("*.json") if path.parent.name in ("repros", "shard-2")]
    assert {(repro.finding.kind, repro.finding.what) for repro in found} == {
        (Kind.CRASHED, "step ended the process, which was killed by SIGABRT")
    }


@pytest.mark.slow
def test_a_worker_that_gives_no_sign_of_life_is_killed(tmp_path: Path) -> None:
    order = Order(
        target=TargetSpec("tests.fuzz.dying:sleeping"), settings={}, seed=1, number=0, out=str(tmp_path), in_process=True
    )
    hand = NearHand(order, silent_s=2.0)
    try:
        while (end := hand.look()) is None:
            pass
    finally:
        hand.end()
    assert end is End.HUNG
    running = Folder(tmp_path).suspend(0)
    assert running is not None
    assert running.tries == 1


@pytest.mark.slow
@pytest.mark.long
def test_whoever_is_killed_nothing_that_was_found_is_lost_and_no_file_is_half_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    survey = killed(out, kills=4, seed=3, seconds=1.0)
    assert (survey.lost, survey.broken) == (set(), [])
    assert survey.fresh > 0


def test_a_campaign_is_not_begun_where_there_is_one_and_not_gone_on_with_as_another_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    campaign = {"target": {"target": "slots"}, "settings": {}, "seed": 4}
    (out / "campaign.json").write_bytes(msgspec.json.encode(campaign))
    again = run(out, "--workers", 1, "--schedules", 1)
    assert (again.exit_code, again.stderr.count("\n")) == (2, 1)
    assert "--out must be a folder without a campaign, unless --resume goes on with it" in again.stderr
    other = run(out, "--resume", "--schedules", 1, "--set", "slots=2")
    assert other.exit_code == 2
    assert "--set, --dtype, --device and --sanitize must be as in the campaign, {}, got " in other.stderr
    assert run(out, "--resume", "--seed", 5).exit_code == 2
    assert told(out / "campaign.json") == campaign


def test_a_campaign_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "campaign.json").write_text('{"target": 3}')
    refused = run(tmp_path, "--resume", "--schedules", 1)
    assert refused.exit_code == 2
    assert "campaign must be one of this version" in refused.stderr
