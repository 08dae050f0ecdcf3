"""The service from end to end: over HTTP, in a browser, and over a restart."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from click.testing import CliRunner

from fuzz.__main__ import main
from stress.jobs.command import service
from tests.browsing import chromium, ugly

ROOT = Path(__file__).parents[3]
START = "from fuzz.__main__ import main; from stress.jobs.command import service; main.add_command(service); main()"
TARGET = "tests.fuzz.scripted:crowded"


@contextmanager
def serving(out: Path, *words: str, sent: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """A service of its own; at the end it is told to end by a signal."""
    allow = ["--allow-target", TARGET, "--grace-seconds", "60"]
    run = subprocess.Popen(
        [sys.executable, "-c", START, "service", "--port", "0", "--out", str(out), *allow, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": f"{os.environ.get('PYTHONPATH', ROOT)}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert run.stdout is not None
        line = run.stdout.readline()
        assert line.startswith("listening on "), line + run.stdout.read()
        yield line.removeprefix("listening on ").strip()
        run.send_signal(sent)
        assert run.wait(90) == (0 if sent is signal.SIGTERM else -sent)
    finally:
        run.kill()
        run.communicate()


def job(url: str, number: int) -> dict[str, Any]:
    told: dict[str, Any] = httpx.get(f"{url}/api/jobs/{number}").json()
    return told


def until(url: str, number: int, *states: str) -> dict[str, Any]:
    """Waits for a state of a job."""
    end = time.monotonic() + 240
    while (told := job(url, number))["state"] not in states:
        assert time.monotonic() < end, told
        time.sleep(0.2)
    return told


@pytest.mark.slow
def test_a_job_is_submitted_followed_cancelled_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    asked = {"kind": "fuzz", "target": TARGET, "schedules": 1_000_000, "seed": 1}
    with serving(tmp_path / "out", sent=signal.SIGKILL) as url:
        assert httpx.post(f"{url}/api/jobs", json=asked).status_code == 201
        begun = tmp_path / "out" / "jobs" / "1" / "campaign.json"
        until(url, 1, "running")
        while not begun.is_file():
            time.sleep(0.1)
    with serving(tmp_path / "out") as url:
        until(url, 1, "running")
        found: list[str] = []
        while not found:
            found = httpx.get(f"{url}/api/jobs/1/repros").json()["repros"]
            time.sleep(0.2)
        assert httpx.post(f"{url}/api/jobs/1/cancel").status_code == 202
        assert until(url, 1, "cancelled")["code"] == 1
        assert "stopped; what was found is kept" in httpx.get(f"{url}/api/jobs/1/output").text
        repro = httpx.get(f"{url}/api/jobs/1/repros/{found[0]}").json()
        assert repro["finding"]["what"] == "step raised IndexError: row 2 is out of range"
        assert "Findings, by signature" in httpx.get(f"{url}/api/jobs/1/report").text


@pytest.mark.slow
def test_a_load_test_ends_with_a_service_that_is_killed_and_begins_again_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading() -> list[bytes]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = path.read_bytes().split(b"\0")
                found += [word for word in words if b"locust" in words and word.startswith(bytes(tmp_path))]
        return found

    def wait_for(*folders: str) -> None:
        end = time.monotonic() + 60
        while loading() != [bytes(tmp_path / "out" / "jobs" / "1" / folder) for folder in folders]:
            assert time.monotonic() < end, loading()
            time.sleep(0.1)

    (tmp_path / "locust.py").write_text("import time\n\ntime.sleep(600)\n")  # one that never ends by itself
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving(tmp_path / "out", sent=signal.SIGKILL) as url:
        assert httpx.post(f"{url}/api/jobs", json={"kind": "load"}).status_code == 201
        wait_for("load")
        (tmp_path / "out" / "jobs" / "1" / "load").mkdir()
    wait_for()
    with serving(tmp_path / "out", sent=signal.SIGKILL):
        wait_for("load-2")
    wait_for()


@pytest.mark.slow
def test_a_browser_submits_follows_replays_and_cancels(tmp_path: Path) -> None:
    with serving(tmp_path / "out") as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.set_default_timeout(240_000)
        page.goto(url)
        assert ugly(page) == []
        page.get_by_label("target").fill(TARGET)
        page.get_by_label("seconds").first.fill("600")
        page.get_by_label("seed").fill("1")
        page.get_by_role("button", name="Fuzz").click()
        page.get_by_text("CRASHED survival").first.wait_for()  # it comes by itself
        page.get_by_role("button", name=re.compile("^Replay ")).wait_for()
        assert ugly(page) == []
        page.get_by_role("button", name="Cancel").click()
        page.get_by_text("the report, as one file").wait_for()
        page.get_by_role("button", name="Draw its timeline").click()
        page.locator("[data-over]").wait_for(state="attached")
        page.goto(f"{url}/jobs/1")
        page.get_by_role("link", name="timeline").click()
        page.get_by_text("Slot by slot, step by step").wait_for()
        page.goto(f"{url}/jobs/1")
        page.get_by_role("button", name=re.compile("^Replay ")).click()
        page.get_by_text("FAILED").first.wait_for(state="attached")
        page.get_by_text("something found").wait_for()


@pytest.mark.slow
def test_who_has_not_the_key_and_who_comes_from_elsewhere_is_not_served(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("correct horse")
    (tmp_path / "key").write_text("correcthorse")
    with serving(tmp_path / "out", "--api-key-file", str(key)) as url:
        asked = {"kind": "fuzz", "schedules": 1}
        mine = {"Authorization": "Bearer correcthorse"}
        assert httpx.post(f"{url}/api/jobs", json=asked).status_code == 401
        assert httpx.post(f"{url}/api/jobs", json=asked, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(f"{url}/api/jobs", headers=mine).json() == {"jobs": []}
        assert httpx.get(f"{url}/api/jobs", headers={**mine, "Host": "elsewhere:80"}).status_code == 421
        crossed = httpx.post(f"{url}/api/jobs", json=asked, headers={**mine, "Origin": "http://elsewhere"})
        assert crossed.status_code == 403
        login = httpx.get(url, headers={"Accept": "text/html"})
        assert (login.status_code, login.headers["location"]) == (303, "/login")
        entered = httpx.post(f"{url}/login", data={"key": "correcthorse"})
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert httpx.get(url, headers={"Cookie": cookie.split(";")[0]}).status_code == 200
        assert httpx.get(f"{url}/api/jobs/7", headers=mine).json() == {"error": "there is no such job"}
        assert httpx.get(f"{url}/api/jobs/1/repros/..%2f..%2fjobs", headers=mine).status_code == 404


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--port", "70000"), "--port must be a whole number in 0..65,535, got 70000"),
        (("--jobs", "0"), "--jobs must be a whole number in 1..64, got 0"),
        (("--host", "0.0.0.0"), "--api-key-file must be given where others than this machine can ask, got nothing"),
    ],
)
def test_bad_use_is_one_sentence(words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.commands, "service", service)
    told = CliRunner().invoke(main, ["service", *words], prog_name="slotfuzz")
    assert told.exit_code == 2
    assert told.output.startswith(message)
    assert len(told.output.splitlines()) == 1
