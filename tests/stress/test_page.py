"""Locust's own web page with our figures on it, opened in headless Chromium and looked at."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.stress.locusts import end_of, free_port, serving, start_locust

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")]
ROWS = ("TTFT", "ITL", "TPOT", "tokens/s", "SLO")
WAIT_MS = 60_000


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _wait_until_it_listens(port: int) -> None:
    until = time.monotonic() + WAIT_MS / 1000
    while not _listens(port):
        assert time.monotonic() < until, "locust has no page"
        time.sleep(0.1)


def look(page: Page, url: str, picture: Path) -> dict[str, list[str]]:
    """The cells of each of our rows, by its first one."""
    page.goto(url)
    for kind in ROWS:
        page.get_by_role("cell", name=kind, exact=True).first.wait_for(timeout=WAIT_MS)
    page.screenshot(path=picture, full_page=True)
    rows = [row.get_by_role("cell").all_inner_texts() for row in page.get_by_role("row").all()]
    return {cells[0]: cells for cells in rows if cells and cells[0] in ROWS}


def test_our_figures_are_on_locusts_page(tmp_path: Path) -> None:
    port = free_port()
    web = ("--web-host", "127.0.0.1", "--web-port", str(port), "--autostart")
    words = ("-u", "3", "-r", "3", "-t", "300s", "--slo-ttft-ms", "60000", "--no-verify", "--mix", "lengths")
    with serving() as server:
        process = start_locust(server.url, "--out", str(tmp_path), *web, *words)
        try:
            _wait_until_it_listens(port)
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                rows = look(browser.new_page(), f"http://127.0.0.1:{port}", tmp_path / "page.png")
                browser.close()
        finally:
            process.send_signal(signal.SIGTERM)
            run = end_of(process, tmp_path)
    assert rows.keys() == set(ROWS)
    for cells in rows.values():
        assert cells[1] == "visitor"
        assert int(cells[2]) > 0, "so many were counted"
        assert int(cells[3]) == 0, "and none failed"
    assert run.code == 0, run.said
    assert run.load["figures"]["account"]["lost"] == 0
