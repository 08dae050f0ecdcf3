"""A failure's page: everything a reader asks is on it, it needs nothing else, and nothing in it is taken for markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fuzz.__main__ import main
from fuzz.conductor import run_trio
from fuzz.explain import Study, study
from fuzz.judge import Judge
from fuzz.pages.failure import failure_page, pytest_file
from fuzz.repro import Repro, save
from targets.registry import TargetSpec, build
from tests.browsing import chromium, looks, ugly


@pytest.fixture(scope="module")
def studied(repro: Repro) -> Study:
    """The smallest known failure of `late-token`, looked into."""
    found = run_trio(study, Judge(build(repro.target)), repro)
    assert found is not None
    return found


@pytest.mark.slow
def test_the_page_answers_what_a_reader_asks(studied: Study) -> None:
    page = failure_page(studied, Path("R.json"))
    for words in (
        "request #1 depends on what #0 asked",
        "who leaks",
        "Slot by slot, step by step",
        "the step in which it begins",
        "result: another request&#39;s, of an earlier step",
        "Answers, side by side",
        "with other requests&#39; tokens exchanged",
        "alone, request #1 equals the forward without a cache",
        "output crossed",
        "submit #0  prompt [1]  new 1",
        "slotfuzz replay R.json",
        "from fuzz.testing import assert_nothing_wrong",
    ):
        assert words in page, words


@pytest.mark.slow
def test_the_page_is_one_file_that_fetches_nothing_and_runs_nothing(studied: Study) -> None:
    page = failure_page(studied, Path("R.json"))
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?:|\bsrc=|\bon[a-z]+=", page)


@pytest.mark.slow
def test_what_a_target_says_is_text_and_no_markup(studied: Study) -> None:
    hostile = "</pre><script>alert(1)</script><b onmouseover=x>"
    finding = msgspec.structs.replace(studied.finding, what=hostile, evidence=(f"swap: {hostile}",))
    told: Any = Study(studied.repro, finding, studied.trace, studied.diagnosis, studied.cells)
    page = failure_page(told, Path("R.json"))
    assert "alert(1)" in page
    assert "<script" not in page
    assert "<b onmouseover" not in page


@pytest.mark.slow
def test_the_pasted_test_fails_while_the_bug_is_there_and_passes_once_it_is_fixed(repro: Repro) -> None:
    names: dict[str, Any] = {}
    exec(pytest_file(repro), names)
    with pytest.raises(AssertionError, match="LEAK  request #1 depends on what #0 asked"):
        names[f"test_no_leak_{repro.id}"]()
    mended = msgspec.structs.replace(repro, target=TargetSpec())
    exec(pytest_file(mended), names)
    names[f"test_no_leak_{repro.id}"]()


def test_the_pasted_test_is_sound_python_whatever_was_found(repro: Repro) -> None:
    what = 'raised KeyError: "\\"""\n'
    awkward = msgspec.structs.replace(repro, finding=msgspec.structs.replace(repro.finding, what=what))
    compile(pytest_file(awkward), "pasted", "exec")


@pytest.mark.slow
def test_explain_writes_the_page_beside_its_prose(repro: Repro, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    told = CliRunner().invoke(main, ["explain", str(save(repro, tmp_path)), "--html", str(html)])
    assert told.exit_code == 0
    assert "Where it began" in told.output
    assert html.read_text().startswith("<!doctype html>")
    nowhere = CliRunner().invoke(
        main, ["explain", "R.json", "--html", str(tmp_path / "no" / "page.html")], prog_name="slotfuzz"
    )
    assert (nowhere.exit_code, nowhere.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
def test_the_page_can_be_read_in_light_and_dark_wide_and_narrow(studied: Study, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(failure_page(studied, Path("R.json")))
    with chromium() as browser:
        for look, page in looks(browser, path.as_uri()):
            assert ugly(page) == [], look
            page.get_by_text("As a pytest file, ready to paste").click()
            assert page.get_by_text("assert_nothing_wrong(SCHEDULE").is_visible()
            assert ugly(page) == [], look


@pytest.mark.slow
def test_what_can_t_be_read_would_be_noticed(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        "<main style='background: #fff'><p style='color: #ddd'>pale</p><p style='width: 3000px'>long</p>"
        "<svg width='40' height='20'><text y='12'>one on</text><text y='12' x='9'>another</text></svg></main>"
    )
    with chromium() as browser:
        page = browser.new_page()
        page.goto(path.as_uri())
        told = "\n".join(ugly(page))
    assert re.search("pixels too wide", told)
    assert "pale: 1." in told
    assert "overlap: one on / another" in told
