from __future__ import annotations

import pytest

from oracle.finding import Finding
from oracle.symptoms import SYMPTOMS, Clues, match
from oracle.where import Part, Where
from targets.protocol import CheckName, Kind

NAMED = {
    "two runs differ",
    "repeated or garbled text",
    "long sequences degrade",
    "memory grows",
    "rows disturb each other",
    "output crossed",
    "dimension error",
    "unstable results",
    "odd attention",
    "low throughput",
    "memory held after exit",
}
"""The rows that debugging guides have; ours adds a few."""


def finding(kind: Kind, what: str = "something", check: CheckName = CheckName.SWAP) -> Finding:
    return Finding(kind=kind, check=check, what=what, submission=1)


def where(site: str, part: Part, shared: bool | None = None) -> Where:
    return Where(site=site, part=part, what=site, shared=shared)


def row(clues: Clues) -> str | None:
    found = match(clues)
    return None if found is None else found.name


def test_the_table_has_a_row_for_everything_that_guides_list_and_each_row_is_whole() -> None:
    names = [symptom.name for symptom in SYMPTOMS]
    assert set(names) >= NAMED
    assert len(set(names)) == len(names)
    assert all(all((symptom.symptom, symptom.cause, symptom.experiment, symptom.fix)) for symptom in SYMPTOMS)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_finding_of_which_nothing_is_known_fits_no_row_but_those_of_its_kind(kind: Kind) -> None:
    expected = {Kind.STALLED: "request waits for ever", Kind.BOOKKEEPING: "output crossed", Kind.ECHO: "parameters crossed"}
    assert row(Clues(finding(kind))) == expected.get(kind)


def test_a_crash_is_a_dimension_error_only_if_it_speaks_of_shapes() -> None:
    assert (
        row(Clues(finding(Kind.CRASHED, "step raised RuntimeError: The size of tensor a (5) must match")))
        == "dimension error"
    )
    assert row(Clues(finding(Kind.CRASHED, "step raised KeyError: 5"))) is None


@pytest.mark.parametrize(("gone", "name"), [(True, "low throughput"), (False, "request waits for ever")])
def test_a_stall_that_equal_lengths_cure_is_padding(gone: bool, name: str) -> None:
    assert row(Clues(finding(Kind.STALLED), equal_lengths_gone=gone)) == name


@pytest.mark.parametrize(
    ("shared", "serialised_gone", "past", "name"),
    [
        (True, False, None, "rows disturb each other"),
        (False, True, False, "unstable results"),
        (False, False, True, "two runs differ"),
        (None, None, None, None),
    ],
)
def test_cells_of_another_request_are_told_apart_by_experiment(
    shared: bool | None, serialised_gone: bool | None, past: bool | None, name: str | None
) -> None:
    place = where("K,V: its cells hold another request's", Part.KEYS, shared)
    assert row(Clues(finding(Kind.LEAK), place, past=past, serialised_gone=serialised_gone)) == name


def test_a_leak_that_only_a_used_target_shows_is_one_of_two_runs() -> None:
    assert row(Clues(finding(Kind.LEAK, check=CheckName.REPEAT))) == "two runs differ"
    assert row(Clues(finding(Kind.LEAK))) is None


def test_the_same_evidence_gives_the_same_row() -> None:
    clues = Clues(finding(Kind.WRONG_ALONE), where("mask: own cells missing", Part.MASK))
    assert {row(clues) for _ in range(3)} == {"long sequences degrade"}
