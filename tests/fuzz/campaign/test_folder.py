"""What a campaign keeps is there whoever dies: schedules that were begun, failures that were found, with or without room."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from fuzz import repro as repros
from fuzz.campaign.bugs import Bugs, Told
from fuzz.campaign.folder import FAILED, FIXED, UNCONFIRMED, Campaign, Folder, Running, read_json, write_json
from fuzz.campaign.shard import Diary, Order
from fuzz.fresh import Manner, Outcome
from fuzz.repro import Repro
from targets.protocol import BadInput, Request, Schedule, Submit
from targets.registry import TargetSpec

SCHEDULE = Schedule(ops=(Submit(Request(prompt=(1, 2), max_new_tokens=1)),))


def order(out: Path, *again: Running) -> Order:
    return Order(target=TargetSpec(), settings={}, seed=5, number=3, out=str(out), again=again)


def bugs(out: Path) -> Bugs:
    campaign = Campaign(target=TargetSpec(), settings={}, seed=5)
    return Bugs(Folder(out), campaign, Manner(TargetSpec()), Told())


def full(*_: object) -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_schedule_that_a_worker_did_not_come_to_the_end_of_is_pending_until_another_one_has(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    Diary(order(tmp_path), folder).begins(SCHEDULE)  # and then it is killed
    assert folder.suspend(3) == Running(SCHEDULE, tries=1)
    assert folder.suspend(3) is None
    (pending,) = folder.waiting()
    second = Diary(order(tmp_path, pending), folder)
    second.begins(SCHEDULE)
    assert folder.suspend(3) == Running(SCHEDULE, tries=2)
    assert folder.waiting() == [Running(SCHEDULE, tries=2)]
    third = Diary(order(tmp_path, Running(SCHEDULE, tries=2)), folder)
    third.begins(SCHEDULE)
    third.settled()
    assert folder.waiting() == []
    assert folder.suspend(3) is None


def test_a_schedule_that_nobody_comes_to_the_end_of_is_put_aside_and_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    write_json(folder.pending_path(SCHEDULE), Running(SCHEDULE, tries=4))
    aside = folder.give_up(folder.waiting()[0])
    assert folder.waiting() == []
    assert read_json(aside, Running) == Running(SCHEDULE, tries=4)


def test_what_was_found_while_the_disk_was_full_is_kept_until_there_is_room(
    repro: Repro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    diary = Diary(order(tmp_path), folder)
    diary.begins(SCHEDULE)
    diary.unsaved.append(repro)
    with monkeypatch.context() as patch:
        patch.setattr(repros, "save", full)
        diary.settled()
        assert folder.unconfirmed() == []
        assert folder.running(3).is_file(), "should it be killed now, the schedule shows it again"
    diary.settled()
    assert [repros.load(path) for path in folder.unconfirmed()] == [repro]
    assert not folder.running(3).exists()


def test_what_a_worker_had_no_room_for_is_taken_over_by_the_supervisor(repro: Repro, tmp_path: Path) -> None:
    collected = bugs(tmp_path)
    collected.stranded(f"something else\nno room for {repro.id}: {msgspec.json.encode(repro).decode()}\n")
    collected.collect()
    (path,) = collected.folder.unconfirmed()
    assert repros.load(path) == repro


def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "campaign.json"
    write_json(path, {"old": 1})

    def broken(_: int) -> None:
        full()

    monkeypatch.setattr("fuzz.repro.os.fsync", broken)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"new": 2})
    assert msgspec.json.decode(path.read_bytes()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_was_about_to_write_is_cleared_and_a_live_one_s_is_not(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.shards.mkdir()
    dead, live = folder.shards / ".999999999-0a1b2c3d.tmp", folder.shards / ".1-0a1b2c3d.tmp"
    dead.touch()
    live.touch()
    folder.clear()
    assert list(folder.shards.iterdir()) == [live]


def test_two_campaigns_can_t_be_in_one_folder_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(BadInput, match="--out must be a folder in which no campaign runs")
    with Folder(tmp_path).locked(), refused, Folder(tmp_path).locked():
        pass
    with Folder(tmp_path).locked():
        pass


def test_what_is_found_stays_where_it_is_until_its_copy_is_stored(repro: Repro, tmp_path: Path) -> None:
    known = bugs(tmp_path)
    path = repros.save(repro, known.folder.found_by(0))
    known.collect()
    (bug,) = known.campaign.bugs
    assert bug.status == UNCONFIRMED
    known._confirmed(path, Outcome(str(path), "FIXED", same_bits=True))
    assert (bug.status, path.is_file()) == (UNCONFIRMED, True)
    known._confirmed(path, Outcome(str(path), "FAILED", same_bits=False))
    assert (bug.status, path.is_file()) == (UNCONFIRMED, True)
    known._confirmed(path, Outcome(str(path), "FAILED", same_bits=True))
    assert (bug.status, path.is_file()) == (FAILED, False)
    assert repros.load(known.folder.repros / f"{repro.id}.json") == repro


def test_a_signature_that_is_known_needs_no_second_repro_and_one_that_was_fixed_does(repro: Repro, tmp_path: Path) -> None:
    known = bugs(tmp_path)
    stored = repros.save(repro, known.folder.repros)
    known._note(repro, 1.0).status = FAILED
    second = repros.save(repro, known.folder.found_by(1))
    known.collect()
    assert not second.exists()
    assert stored.is_file()
    known.campaign.bugs[0].status = FIXED
    third = repros.save(repro, known.folder.found_by(2))
    known.collect()
    assert third.is_file()
    assert (known.campaign.bugs[0].status, known.campaign.bugs[0].first_seen_s) == (UNCONFIRMED, 1.0)
