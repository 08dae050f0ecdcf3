"""`slotfuzz explain`: every planted bug lands on its row, and the text says what there is to say."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fuzz.__main__ import main
from fuzz.bisection import level
from fuzz.conductor import run_trio
from fuzz.explain import Diagnosis, diagnose, explain
from fuzz.fault_bench.attempts import stage_of
from fuzz.judge import Judge
from fuzz.repro import Repro, save
from oracle.checks import CHECKS
from oracle.symptoms import SYMPTOMS
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import Kind, Request, Schedule, Step, Submit
from targets.registry import TargetSpec, build
from tests.fuzz.scripted import crowded
from tests.quality.planting import plant, smallest

ROWS = {
    "two runs differ": [("stale-length", Kind.LEAK), ("kept-between-runs", Kind.LEAK)],
    "repeated or garbled text": [("heads-share", Kind.WRONG_ALONE), ("layer-off-by-one", Kind.WRONG_ALONE)],
    "long sequences degrade": [("mask-too-short", Kind.WRONG_ALONE)],
    "memory grows": [("global-cache-appended", Kind.OWNERSHIP), ("stale-length", Kind.OWNERSHIP)],
    "rows disturb each other": [
        ("global-cache-overwritten", Kind.LEAK),
        ("global-cache-appended", Kind.LEAK),
        ("global-cache-locked", Kind.LEAK),
        ("expanded-prompt", Kind.LEAK),
    ],
    "output crossed": [
        ("result-by-row", Kind.LEAK),
        ("late-token", Kind.LEAK),
        ("state-by-client-id", Kind.LEAK),
        ("swap-through-views", Kind.LEAK),
        ("swap-through-views", Kind.OWNERSHIP),
        ("token-lost-on-finish", Kind.BOOKKEEPING),
    ],
    "dimension error": [("unaligned-lengths", Kind.CRASHED)],
    "unstable results": [("scratch-shared", Kind.LEAK)],
    "odd attention": [
        ("mask-to-longest", Kind.INTERFERENCE),
        ("mask-to-longest", Kind.LEAK),
        ("padding-visible", Kind.INTERFERENCE),
        ("padding-visible", Kind.OWNERSHIP),
    ],
    "low throughput": [("padding-starves", Kind.STALLED)],
    "memory held after exit": [("cancel-never-frees", Kind.OWNERSHIP), ("cancel-never-frees", Kind.STALLED)],
    "request waits for ever": [("starved", Kind.STALLED)],
    "slot handed out twice": [("cancel-frees-twice", Kind.OWNERSHIP), ("cancel-frees-twice", Kind.LEAK)],
    "parameters crossed": [
        ("state-left-behind", Kind.ECHO),
        ("mask-filled-with-nothing", Kind.ECHO),
        ("counts-late", Kind.ECHO),
        ("noise-by-step", Kind.ECHO),
        ("logprobs-of-the-first", Kind.ECHO),
    ],
    "words out of place": [("position-of-longest", Kind.INTERFERENCE), ("position-restarts", Kind.WRONG_ALONE)],
}
LANDINGS = [(row, name, kind) for row, pairs in ROWS.items() for name, kind in pairs]


def diagnosis(factory: DecoderFactory, schedule: Schedule, kind: Kind) -> Diagnosis:
    """Of the first finding of this kind."""

    async def go() -> Diagnosis:
        judge = Judge(factory, stage_of(factory))
        judgement = await judge.judge(schedule, tuple(CHECKS), thorough=True)
        finding = next(finding for finding in judgement.findings if finding.kind is kind)
        return await diagnose(judge, schedule, finding, judgement.trace)

    return run_trio(go)


def test_every_row_of_the_table_has_a_planted_bug() -> None:
    assert set(ROWS) == {row.name for row in SYMPTOMS}
    assert {name for _, name, _ in LANDINGS} <= set(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "name", "kind"), LANDINGS, ids=str)
def test_a_fault_lands_on_its_row(tiny: Model, row: str, name: str, kind: Kind) -> None:
    factory, _ = plant(tiny, name)
    found = diagnosis(factory, smallest(name, kind), kind)
    assert found.symptom is not None
    assert found.symptom.name == row


def told(repro: Repro) -> str:
    factory = build(repro.target)
    explanation = run_trio(explain, Judge(factory), repro, Path("R.json"))
    assert explanation.fails
    return explanation.text


GOLDEN = """\
LEAK: request #1 depends on what #0 asked. Token 0 of its answer is 307; alone it is 85.

The smallest schedule
    0  submit #0  prompt [1]  new 1
    1  step 1
    2  submit #1  prompt [2]  new 1

What proves it
  - reference: token 0 of request #1 departs by 6.25, rounding explains 1.71e-13
  - swap: with other requests' tokens exchanged and everything else equal, the bits of token 0 of
    request #1 change

Where it began
  At step 1, position 0: result of request #1 is -4.22236, alone 2.03193: another request's, of an
  earlier step (#0's). Everything before that agrees with the request alone.
  Site: result: another request's, of an earlier step

The cells of request #1, step by step
  step  tokens run  cells  alone  layer 0  alone     layer 1  alone
     1           1      1      1  bf6ed95c bf6ed95c  5b1867ae 5b1867ae
  The same in every step: its cells are as alone.

Narrowing it down
  - cache off: alone, request #1 equals the forward without a cache: somebody else is needed
  - request: #0 is the only other one
  - layer, head: none: it departs outside the attention (result)
  - one request a step: it stays: what is shared is shared over time, and a lock would not help
  - prompts of one length: not done: they are of one length as it is

What it looks like
  output crossed
  symptom  an answer has pieces of another request's, lacks a piece, or goes on as another one would
  cause    a result, a token or a row's state is overwritten or spliced into the wrong request
  decides  compare Q, K, V: they agree up to the row, and what went in or came out is another
           request's
  fix      match results and state by request, not by row or by the client's id; copy a row before
           it is overwritten

Replay it, and again once it is fixed:

  slotfuzz replay R.json"""


def anywhere(text: str) -> str:
    """The text without the last bits of sums, which differ from one processor to another: the bound, and checksums."""
    text = re.sub(r"rounding explains [0-9.e-]+", "rounding explains R", text)
    names: dict[str, str] = {}
    return re.sub(r"\b[0-9a-f]{8}\b", lambda found: names.setdefault(found[0], "checksum" + "ABCDEFGH"[len(names)]), text)


def test_an_explanation_goes_from_what_to_what_next(repro: Repro) -> None:
    assert anywhere(told(repro)) == anywhere(GOLDEN)


@pytest.mark.slow
def test_the_first_step_whose_cells_depart_is_marked(tiny: Model, repro: Repro) -> None:
    schedule = Schedule(
        ops=(
            Submit(Request(prompt=(1, 2, 3), max_new_tokens=2)),
            Step(),
            Submit(Request(prompt=(1,), max_new_tokens=2)),
            Submit(Request(prompt=(4,), max_new_tokens=5)),
        )
    )
    factory, _ = plant(tiny, "global-cache-locked")

    async def text() -> str:
        judge = Judge(factory)
        judgement = await judge.judge(schedule, thorough=True)
        stored = msgspec.structs.replace(repro, schedule=schedule, finding=judgement.findings[0])
        return (await explain(judge, stored, Path("R.json"))).text

    lines = run_trio(text).splitlines()
    marked = [line.split() for line in lines if line.endswith("<- departs")]
    assert len(marked) == 1
    assert any("view or copy: two requests that run together have cells in common" in line for line in lines)
    assert any(line.strip() == "rows disturb each other" for line in lines)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["explain", *arguments])
    return result.exit_code, result.output


def test_a_failure_that_is_fixed_says_so_and_exits_with_one(repro: Repro, tmp_path: Path) -> None:
    whole = msgspec.structs.replace(repro, target=TargetSpec())
    code, output = invoke(str(save(whole, tmp_path)))
    assert code == 1
    assert output.startswith("FIXED")


def test_a_stored_failure_is_explained_and_exits_with_zero(repro: Repro, tmp_path: Path) -> None:
    code, output = invoke(str(save(repro, tmp_path)))
    assert code == 0
    assert output.startswith("LEAK: request #1 depends on what #0 asked.")
    assert f"slotfuzz replay {tmp_path}" in output


def test_bad_input_is_a_sentence(repro: Repro, tmp_path: Path) -> None:
    assert invoke(str(tmp_path / "none.json"))[0] == 2
    own = msgspec.structs.replace(repro, target=TargetSpec(target="tests.fuzz.scripted:honest"))
    code, output = invoke(str(save(own, tmp_path)))
    assert code == 2
    assert output.startswith("--target must be tests.fuzz.scripted:honest for this repro, got none")


def test_what_cannot_be_told_says_why(repro: Repro) -> None:
    schedule = Schedule(ops=tuple(Submit(Request(prompt=(token,), max_new_tokens=1)) for token in (1, 2, 3)))
    finding = run_trio(Judge(crowded()).judge, schedule).findings[0]
    stored = msgspec.structs.replace(
        repro, target=TargetSpec(target="tests.fuzz.scripted:crowded"), schedule=schedule, finding=finding
    )
    text = told(stored)
    assert text.startswith("CRASHED: the target broke down: step raised IndexError: row 2 is out of range.")
    assert "Site: raised: step raised IndexError: row … is out of range" in text
    assert "not shown: the finding names no request" in text
    assert "No row of the table of symptoms fits what is known." in text
    assert text.endswith("slotfuzz replay --target tests.fuzz.scripted:crowded R.json")


def test_prompts_are_cut_to_the_shortest_that_is_not_empty() -> None:
    prompts = ((1, 2, 3), (4, 5), ())
    schedule = Schedule(ops=tuple(Submit(Request(prompt=prompt, max_new_tokens=1)) for prompt in prompts))
    cut = [op.request.prompt for op in level(schedule).ops if isinstance(op, Submit)]
    assert cut == [(1, 2), (4, 5), ()]
