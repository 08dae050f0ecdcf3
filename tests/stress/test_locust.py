"""Locust itself, in a process of its own, against a server in another: what it writes, counts and ends with."""

from __future__ import annotations

import csv
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import stress
from stress.load.account import exchanges
from stress.load.figures import BESIDE_NOISE, QUIET
from stress.load.mixes import asks
from stress.transcript import Begun, Exchange
from tests.stress.locusts import WAIT_S, Server, end_of, free_port, line_of, locust, planned, serving, started

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests that leave it as it was."""
    with serving("--set", "slots=4") as server:
        yield server


def heard(folder: Path) -> list[Exchange]:
    open_: dict[tuple[str, int], Begun] = {}
    found = [exchange for _, exchange in exchanges(folder, open_)]
    assert open_ == {}, "each has its end"
    return found


def test_a_run_writes_down_everything_and_its_figures_are_in_locusts_own(server: Server, tmp_path: Path) -> None:
    prefix = str(tmp_path / "csv")
    words = ("-u", "6", "-r", "6", "-t", "4s", "--seed", "45", "--slo-ttft-ms", "60000", "--no-verify", "--csv", prefix)
    first = next(asks(planned(users=6, seed="45"), 0))
    assert (first.hang_up_tokens, first.request.max_new_tokens) == (1, 4), "so there is somebody who hangs up in mid-stream"
    run = locust(server.url, tmp_path, *words)
    assert run.code == 0, run.said
    assert "seed 45, 6 users, 4 s, against " in run.said
    found = heard(tmp_path)
    assert {exchange.outcome for exchange in found} == {"answered", "cancelled"}
    (left, *_) = (exchange for exchange in found if exchange.request == first.request)
    assert (left.outcome, len(left.pieces), left.finish_reason) == ("cancelled", 1, None)
    for exchange in found:
        if exchange.outcome == "answered":
            assert exchange.usage is not None
            assert len(exchange.tokens) == exchange.usage.completion
            assert exchange.submission is not None
            assert exchange.slots
    account = run.load["figures"]["account"]
    assert account["sent"] == len(found)
    assert (account["lost"], account["refused"], account["failed"]) == (0, 0, 0)
    with (tmp_path / "csv_stats.csv").open() as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    assert {"POST", "TTFT", "ITL", "TPOT", "tokens/s", "SLO"} <= rows.keys()
    answered = [exchange for exchange in found if exchange.outcome == "answered"]
    assert int(rows["TTFT"]["Request Count"]) == len(answered)
    assert run.load["figures"]["goodput"]["kept"] == len(answered)
    assert run.load["gauges"]["held_idle"] == {}
    told = json.loads((tmp_path / "run.json").read_bytes())
    assert told["model"] == "tiny"
    assert told["served"] == {"target": "slots", "model": "tiny", "faults": [], "settings": {"slots": 4, "queue_max": 256}}


def test_who_hangs_up_is_cancelled_at_the_server(server: Server, tmp_path: Path) -> None:
    before = cancelled(server)
    words = ("-u", "4", "-r", "4", "-t", "3s", "--seed", "0", "--mix", "cancels", "--answer-tokens", "200", "--no-verify")
    run = locust(server.url, tmp_path, *words)
    assert run.code == 0, run.said
    left = [exchange for exchange in heard(tmp_path) if exchange.outcome == "cancelled" and exchange.pieces]
    assert left, "in mid-stream"
    assert all(len(exchange.tokens) < 200 for exchange in left)
    assert cancelled(server) > before, "the server had not answered them when they left"


def cancelled(server: Server) -> float:
    """How many requests the server has cancelled so far."""
    with urlopen(f"{server.url}/metrics") as page:
        return float(line_of(page.read().decode(), r'slotfuzz_requests_total\{outcome="cancelled"\} (\S+)')[1])


def test_two_workers_write_a_transcript_each_and_the_master_counts_both(server: Server, tmp_path: Path) -> None:
    run = locust(server.url, tmp_path, "--processes", "2", "-u", "4", "-r", "4", "-t", "4s", "--no-verify", "--seed", "3")
    assert run.code == 0, run.said
    files = sorted((tmp_path / "transcripts").iterdir())
    assert [file.name[0] for file in files] == ["0", "1"]
    assert run.load["figures"]["account"]["sent"] == len(heard(tmp_path))


def test_a_master_and_a_worker_that_are_started_apart_are_one_run(server: Server, tmp_path: Path) -> None:
    port = str(free_port())
    words = ("--headless", "--only-summary", "-u", "2", "-r", "2", "-t", "3s", "--no-verify", "--out", str(tmp_path))
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port)
    noise = ("--noise", "1", "--period", "1")
    join = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    with (
        started(server.url, "--master", "--expect-workers", "1", *bind, *words, *noise) as master,
        started(server.url, *join) as worker,
    ):
        run, share = end_of(master, tmp_path), end_of(worker, tmp_path)
    assert (run.code, share.code) == (0, 0), run.said + share.said
    assert run.load["figures"]["account"]["sent"] == len(heard(tmp_path)) > 0
    assert "victim in quiet" in run.load["figures"]["users"], "the worker does what the master was told"


def test_nobody_is_spawned_where_no_endpoint_is(tmp_path: Path) -> None:
    run = locust(f"http://127.0.0.1:{free_port()}", tmp_path, "-u", "2", "-t", "5s")
    assert run.code == 2
    assert (
        "--host must be an endpoint that lists its models, or --model given, got [Errno 111] Connection refused" in run.said
    )
    assert "Traceback" not in run.said
    assert "Aggregated" not in run.said, "no table of nothing"


def test_a_server_that_is_killed_ends_the_run_and_what_was_in_flight_is_told(tmp_path: Path) -> None:
    words = ("--headless", "--only-summary", "--out", str(tmp_path), "-u", "4", "-r", "4", "-t", "300s")
    longer = ("--answer-tokens", "100", "--mix", "lengths", "--verify", "--repros 0")
    with serving("--set", "slots=2") as server, started(server.url, *words, *longer) as process:
        _wait_for_an_answer(tmp_path)
        server.kill()
        run = end_of(process, tmp_path)
    assert run.code == 1, run.said
    assert "the endpoint is gone" in run.said
    account = run.load["figures"]["account"]
    assert account["lost"] == 4, "each of the four users had one in flight"
    assert {lost["error"].partition(":")[0] for lost in account["in_flight"]} == {"the connection broke"}
    assert account["unreached"] > 0
    verdicts = json.loads((tmp_path / "verdicts.json").read_bytes())
    assert (verdicts["verdict"], verdicts["wrong"], verdicts["lost"], verdicts["unjudged"]) == ("FAIL", 0, 4, 0)
    assert verdicts["unreached"] == account["unreached"]
    assert verdicts["judged"] == account["sent"] - account["lost"] - account["unreached"] > 0
    assert [each["standing"] for each in verdicts["not_right"][:5]] == ["lost"] * 4 + ["unreached"]
    assert len(re.findall(r"^  lost: visitor \S+, after \d+ pieces: the connection broke", run.said, re.MULTILINE)) == 4


def test_a_chat_is_judged_by_what_the_endpoint_says_alone(server: Server, tmp_path: Path) -> None:
    words = ("-u", "2", "-r", "2", "-t", "2s", "--seed", "3", "--route", "chat", "--verify", f"--endpoint {server.url}")
    run = locust(server.url, tmp_path, *words)
    assert run.code == 0, run.said
    verdicts = json.loads((tmp_path / "verdicts.json").read_bytes())
    assert verdicts["judged"] == verdicts["responses"] == len(heard(tmp_path)) > 0
    assert {exchange.chat for exchange in heard(tmp_path)} == {True}


def test_a_run_that_is_told_to_end_while_it_is_judged_says_that_nobody_knows(server: Server, tmp_path: Path) -> None:
    words = ("--headless", "--only-summary", "--out", str(tmp_path), "-u", "2", "-r", "2", "-t", "2s", "--mix", "lengths")
    with started(server.url, *words) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("judging "):  # its judges have not begun yet
            assert line, "it is judged"
        process.send_signal(signal.SIGTERM)
        run = end_of(process, tmp_path)
    assert run.code == 3, run.said
    verdicts = json.loads((tmp_path / "verdicts.json").read_bytes())
    assert verdicts["unjudged"] == verdicts["responses"] == run.load["figures"]["account"]["sent"] > 0
    assert f"0 judged, 0 wrong, 0 lost, {verdicts['unjudged']} unjudged" in run.said
    assert "the judging was told to stop" in run.said


def _wait_for_an_answer(folder: Path) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if any(b'"heard"' in path.read_bytes() for path in folder.glob("transcripts/*.jsonl")):
            return
        time.sleep(0.05)
    raise AssertionError("nothing was answered")


def test_a_recorded_trace_is_played_as_it_was_recorded(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines: list[dict[str, Any]] = [
        {"arrival_s": 5 + index / 5, "prompt_tokens": 3, "new_tokens": 1 + index} for index in range(8)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = locust(server.url, tmp_path, "-u", "2", "-r", "2", "-t", "4s", "--trace", str(trace), "--no-verify")
    assert run.code == 0, run.said
    found = sorted(heard(tmp_path), key=lambda exchange: exchange.sent_s)
    assert sorted(exchange.request.max_new_tokens for exchange in found) == list(range(1, 9))
    assert found[-1].sent_s - found[0].sent_s == pytest.approx(7 / 5, abs=0.5)


def test_a_victim_waits_for_noisy_neighbours_and_its_figures_say_so(tmp_path: Path) -> None:
    """One slot, so that a victim beside noise waits for two answers of 32 tokens, and in quiet for nobody."""
    words = ("-u", "3", "-r", "3", "-t", "16s", "--noise", "2", "--period", "4", "--context", "64", "--no-verify")
    with serving("--set", "slots=1") as server:
        run = locust(server.url, tmp_path, *words)
    assert run.code == 0, run.said
    assert {"noisy", QUIET, BESIDE_NOISE} <= run.load["figures"]["users"].keys(), run.said
    assert run.load["figures"]["noise"]["ttft_p50"] > 2, run.said
    answers = {user: [each for each in heard(tmp_path) if each.user == user] for user in ("noisy", QUIET, BESIDE_NOISE)}
    waits = {user: [passed(victim, answers["noisy"]) > 0 for victim in answers[user]] for user in (QUIET, BESIDE_NOISE)}
    assert sum(waits[QUIET]) < len(waits[QUIET]) / 2
    assert sum(waits[BESIDE_NOISE]) > len(waits[BESIDE_NOISE]) / 2, "it is the neighbours for whom it waits"
    seed = json.loads((tmp_path / "run.json").read_bytes())["seed"]
    assert f"seed {seed}, 3 users, 16 s" in run.said, "it was drawn, and is told"


def passed(victim: Exchange, others: list[Exchange]) -> int:
    """How many others were answered while a victim waited for its first token."""
    return sum(victim.sent_s < other.ended_s < victim.pieces[0].at_s for other in others) if victim.pieces else 0


def test_bad_use_is_one_sentence_and_nothing_is_asked(tmp_path: Path) -> None:
    run = locust("http://10.0.0.1:80", tmp_path, "-t", "3s")
    assert run.code == 2
    *_, last = run.said.splitlines()
    assert last.startswith("--host must be this machine's loopback, or --allow-remote given: this is a load gun, got")
    assert "Traceback" not in run.said
    assert not (tmp_path / "run.json").exists()


def test_no_module_beside_the_locustfile_is_called_like_one_of_pythons() -> None:
    """Locust puts that folder first on the path from which modules are imported."""
    (folder,) = stress.__path__
    names = {path.stem for path in Path(folder).iterdir()}
    assert not names & sys.stdlib_module_names


def test_locust_never_shares_a_process_with_this_one() -> None:
    assert "locust" not in sys.modules
