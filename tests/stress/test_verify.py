"""From what clients heard to `verdicts.json`: nothing is said of an honest endpoint, and a planted bug becomes a repro."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio
from click.testing import CliRunner, Result

from fuzz import repro as repros
from fuzz.commandline import Group
from fuzz.replaying import Outcome, Replayer
from oracle.finding import Verdict
from stress.judging.asked import Verifying
from stress.judging.asking import Hearing
from stress.judging.following import Following
from stress.judging.opinion import Standing
from stress.judging.panel import Panel
from stress.judging.verdicts import Verdicts
from stress.recording.account import recorded
from stress.transcript import Begun, Exchange, Heard, format_line
from stress.verify_command import verify as command
from stress.verifying import verify
from stress.wording import body_of
from targets.protocol import Kind, Request, Setting
from targets.registry import TargetSpec, build
from tests.stress.loading import asked
from tests.stress.visiting import Served, Visit, served

pytestmark = pytest.mark.slow
CLIENTS = 12


def loaded(folder: Path, fault: str | None = None, count: int = 40, settings: dict[str, Setting] | None = None) -> Verifying:
    """A run's folder after a small load of an endpoint, and how it is judged."""
    spec = TargetSpec(faults=() if fault is None else (fault,))
    factory = build(spec)
    requests = asked(5)[:count]
    (folder / "transcripts").mkdir()

    async def main() -> None:
        with recorded(factory, folder / "account.jsonl") as written, (folder / "transcripts" / "a.jsonl").open("wb") as file:

            async def client(endpoint: Served, numbers: range) -> None:
                for number in numbers:
                    file.write(
                        format_line(Begun(number=number, user="one", request=requests[number], sent_s=time.monotonic()))
                    )
                    file.write(format_line(Heard(exchange=await exchanged(endpoint, number, requests[number]))))

            async with served(written, settings) as endpoint, trio.open_nursery() as clients:
                clients.cancel_scope.deadline = trio.current_time() + 120
                for first in range(CLIENTS):
                    clients.start_soon(client, endpoint, range(first, count, CLIENTS))

    trio.run(main)
    return Verifying(
        folder=folder,
        spec=spec,
        factory=factory,
        settings=settings or {},
        workers=0,
        follow=False,
        quiet_s=1.0,
        account=folder / "account.jsonl",
        foreign=False,
        repros_max=1,
    )


async def hang_up_after_a_piece(visit: Visit) -> None:
    await visit.pieces(1)
    visit.hang_up()


async def exchanged(endpoint: Served, number: int, request: Request) -> Exchange:
    """One request as its client hears it; every fifth client hangs up after a token."""
    hearing = Hearing(lambda _: None)
    sent_s = time.monotonic()
    visit = endpoint.visit("/v1/completions", body_of(request, "tiny"))
    if number % 5 == 4:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang_up_after_a_piece, visit)
            await visit.over.wait()
            nursery.cancel_scope.cancel()
    await visit.over.wait()
    hearing.status = visit.answer.status
    if visit.answer.status != 200:
        hearing.refused(visit.answer.body.decode())
    for event in visit.answer.body.decode().split("\n\n"):
        if event.startswith("data: "):
            hearing.take(event.removeprefix("data: "))
    return Exchange(
        number=number,
        user="one",
        request=request,
        sent_s=sent_s,
        ended_s=time.monotonic(),
        outcome="cancelled" if hearing.outcome == "cut" else hearing.outcome,  # type: ignore[arg-type]
        status=hearing.status,
        pieces=tuple(hearing.pieces),
        finish_reason=hearing.finish,
        usage=hearing.usage,
        submission=hearing.submission,
        slots=hearing.slots,
        cached=hearing.cached,
        error=hearing.error,
    )


def stored(folder: Path) -> Verdicts:
    return msgspec.json.decode((folder / "verdicts.json").read_bytes(), type=Verdicts)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Verifying:
    return loaded(tmp_path_factory.mktemp("clean"))


def test_of_an_honest_endpoint_everything_is_judged_and_nothing_is_wrong(clean: Verifying) -> None:
    verdicts = verify(replace(clean, workers=2))
    assert verdicts == stored(clean.folder)
    assert (verdicts.worst, verdicts.responses, verdicts.judged) == (Verdict.PASS, 40, 40)
    assert verdicts.tokens == verdicts.tokens_judged > 100
    assert {"answered", "cancelled"} <= set(verdicts.outcomes)


def test_a_planted_bug_is_flagged_and_shrunk_to_a_repro_that_fails_in_a_fresh_process(tmp_path: Path) -> None:
    asked = loaded(tmp_path, "stale-length")
    verdicts = verify(asked)
    assert verdicts.worst is Verdict.FAIL
    assert verdicts.wrong > 10
    found = next(each for each in verdicts.repros if each.kind == Kind.LEAK)
    assert (found.requests, found.by) == (2, "account")
    repro = repros.load(tmp_path / found.path)
    assert (repro.target, repro.minimal) == (asked.spec, True)
    assert Replayer().replay(tmp_path / found.path).outcome is Outcome.FAILED
    assert verdicts.kinds["LEAK"] == 1, "the kind of the one that was looked into is known"


def test_a_bug_is_found_in_the_clients_own_timeline_where_there_is_no_account(tmp_path: Path) -> None:
    asked = replace(loaded(tmp_path, "stale-length"), account=None)
    verdicts = verify(asked)
    assert (Kind.LEAK, "timeline") in [(found.kind, found.by) for found in verdicts.repros]


def test_in_float32_a_suspect_is_convicted_by_an_experiment_or_by_nobody(tmp_path: Path) -> None:
    asked = loaded(tmp_path, "stale-length", 10, {"dtype": "float32"})
    doubted = verify(replace(asked, repros_max=0))
    assert (doubted.worst, doubted.wrong) == (Verdict.UNKNOWN, 0)
    assert doubted.unjudged == doubted.suspects > 0
    decided = verify(asked)
    assert decided.worst is Verdict.FAIL
    assert decided.wrong > 0
    assert decided.wrong + decided.unjudged + decided.refuted == decided.suspects == doubted.suspects
    assert set(decided.kinds) <= {Kind.LEAK, Kind.INTERFERENCE}


def test_a_request_of_which_nothing_was_heard_is_lost(clean: Verifying, tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    lines = (clean.folder / "transcripts" / "a.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "a.jsonl").write_bytes(b"".join(lines[:-1]))
    verdicts = verify(replace(clean, folder=tmp_path, repros_max=0))
    assert (verdicts.worst, verdicts.lost, verdicts.in_flight) == (Verdict.FAIL, 1, 1)
    assert verdicts.responses == 40


def test_a_judge_goes_on_where_another_was_killed(clean: Verifying, tmp_path: Path) -> None:
    (tmp_path / "transcripts").mkdir()
    (tmp_path / "transcripts" / "a.jsonl").write_bytes((clean.folder / "transcripts" / "a.jsonl").read_bytes())
    here = replace(clean, folder=tmp_path, repros_max=0)
    verify(here)
    ledger = tmp_path / "judged.jsonl"
    whole = ledger.read_bytes()
    half = whole.splitlines(keepends=True)[:20]
    changed = half[1].replace(b'"right"', b'"lost"')
    ledger.write_bytes(b"".join([half[0], changed, *half[2:]]) + b'{"source":"a"')
    verdicts = verify(here)
    assert (verdicts.judged, verdicts.lost) == (39, 1), "what was judged before is taken as it stands"
    assert len(ledger.read_bytes().splitlines()) == 41


def test_transcripts_are_judged_while_they_grow(clean: Verifying, tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    lines = (clean.folder / "transcripts" / "a.jsonl").read_bytes().splitlines(keepends=True)

    def grow() -> None:
        with (folder / "a.jsonl").open("wb", buffering=0) as file:
            for line in lines:
                file.write(line[:9])
                file.write(line[9:])
        deadline = time.monotonic() + 60
        judged = tmp_path / "judged.jsonl"
        while time.monotonic() < deadline and not (judged.is_file() and len(judged.read_bytes().splitlines()) >= 10):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=grow)
    thread.start()
    verdicts = verify(replace(clean, folder=tmp_path, follow=True, quiet_s=60.0))
    thread.join()
    assert (verdicts.responses, verdicts.judged) == (40, 40)


def test_experiments_that_are_told_to_stop_leave_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = loaded(tmp_path, "stale-length", 10)

    async def stopped(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()

    monkeypatch.setattr("stress.examining._look_into", stopped)
    verdicts = verify(asked)
    assert verdicts == stored(tmp_path)
    assert (verdicts.worst, verdicts.responses) == (Verdict.FAIL, 10)
    assert verdicts.wrong > 0
    assert verdicts.not_reproduced == ("the experiments were told to stop",)


def test_a_judge_that_dies_drops_nothing(clean: Verifying) -> None:
    panel = Panel(clean.spec, clean.settings, workers=1, nice=False)
    try:
        responses = list(Following(clean.folder).read())
        panel.hand_in(responses[:8])
        while panel.waiting:
            panel.heard(60)
        (worker,) = panel.pids
        os.kill(worker, signal.SIGKILL)
        found = []
        panel.hand_in(responses[8:16])
        panel.hand_in(responses[16:24])
        while panel.waiting:
            found += panel.heard(60)
    finally:
        panel.close()
    assert sorted(opinion.number for opinion in found) == sorted(response.number for response in responses[8:24])
    assert {opinion.standing for opinion in found} == {Standing.RIGHT}
    assert panel.died >= 1


def typed(*words: object) -> Result:
    group = Group(commands={"verify": command})
    return CliRunner().invoke(group, ["verify", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "65"), "--workers must be a whole number in 0..64, got 65"),
        (("--fault", "nope"), "fault must be one of "),
        ((), "FOLDER must be a run's folder, in which there is a folder `transcripts`, got "),
        (("--record", "nowhere"), "--record must be a file that can be read, got nowhere"),
    ],
)
def test_bad_use_is_one_sentence(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    told = typed(tmp_path, *words)
    assert told.exit_code == 2
    assert told.output.startswith(message)
    assert len(told.output.splitlines()) == 1


def test_the_exit_code_says_the_worst(clean: Verifying) -> None:
    assert typed(clean.folder, "--workers", 0).exit_code == 0
