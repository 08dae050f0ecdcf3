"""The store: what was taken in is there after a restart, and what ran is to run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.campaign.folder import Campaign, Folder, Session
from stress.jobs.runner import words_now
from stress.jobs.store import State, Store
from targets.registry import TargetSpec


def test_a_job_outlives_the_service_and_what_ran_waits_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs.sqlite")
    first, second = store.add("fuzz", ["run", "--seconds", "5"]), store.add("fuzz", ["run"])
    store.begin(first.id)
    store.database.execute("SELECT 1")  # and then it is killed: nothing is closed
    again = Store(tmp_path / "jobs.sqlite")
    assert [job.state for job in again.jobs()] == [State.QUEUED, State.RUNNING]
    again.requeue()
    found = again.next()
    assert found is not None
    assert (found.id, found.words, found.state) == (first.id, ("run", "--seconds", "5"), State.QUEUED)
    again.begin(first.id)
    again.end(first.id, State.DONE, 1)
    assert again.next() == again.job(second.id)
    assert (again.job(first.id).code, again.job(first.id).over) == (1, True)
    with pytest.raises(KeyError):
        again.job(99)
    again.close()
    store.close()


def test_a_campaign_goes_on_with_its_seed_and_the_time_that_is_left(tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs.sqlite")
    job = store.add("fuzz", ["run", "--workers", "1", "--resume", "--seconds", "60"])
    folder = tmp_path / "1"
    assert words_now(job, folder)[4:6] == ["--seconds", "60"]
    sessions = [Session(workers=1, began_s=1.0, seconds=15.5), Session(workers=1, began_s=2.0, seconds=4.0)]
    Folder(folder).save(Campaign(target=TargetSpec(), settings={}, seed=9, sessions=sessions))
    assert words_now(job, folder)[4:8] == ["--seconds", "40.500", "--seed", "9"]
    store.close()
