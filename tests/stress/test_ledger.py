"""Opinions on disk: a judge that is killed goes on where it was, and never takes another judge's word."""

from __future__ import annotations

from pathlib import Path

from stress.judging.ledger import Ledger, judged_right
from stress.judging.opinion import Opinion, Standing

ONE, TWO = (Opinion(source="a", number=number, outcome="answered", standing=Standing.RIGHT) for number in (1, 2))
WRONG = Opinion(source="b", number=1, outcome="answered", standing=Standing.WRONG)


def written(path: Path, by: str, *opinions: Opinion) -> dict[tuple[str, int], Opinion]:
    with Ledger(path, by) as ledger:
        ledger.add(opinions)
        return ledger.opinions


def test_a_ledger_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    written(path, "tiny", ONE)
    assert written(path, "tiny", WRONG) == {ONE.name: ONE, WRONG.name: WRONG}
    assert Ledger(path, "tiny").opinions == {ONE.name: ONE, WRONG.name: WRONG}
    assert judged_right(path) == {("a", 1)}


def test_half_a_line_of_a_judge_that_was_killed_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    written(path, "tiny", ONE, TWO)
    path.write_bytes(path.read_bytes()[:-10])
    assert judged_right(path) == {ONE.name}
    assert Ledger(path, "tiny").opinions == {ONE.name: ONE}
    assert written(path, "tiny", TWO) == {ONE.name: ONE, TWO.name: TWO}
    assert Ledger(path, "tiny").opinions == {ONE.name: ONE, TWO.name: TWO}


def test_a_later_opinion_of_one_response_stands(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    doubted = Opinion(source="a", number=1, outcome="answered", standing=Standing.SUSPECT)
    assert written(path, "tiny", doubted, ONE) == Ledger(path, "tiny").opinions == {ONE.name: ONE}


def test_another_judge_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    written(path, "tiny", ONE)
    assert written(path, "tiny dtype=float32") == {}
    assert Ledger(path, "tiny").opinions == {}


def test_what_is_no_ledger_has_no_opinions(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    assert judged_right(path) == frozenset()
    path.write_bytes(b"nonsense\nnonsense\n")
    assert judged_right(path) == frozenset()
    assert written(path, "tiny", ONE) == {ONE.name: ONE}
