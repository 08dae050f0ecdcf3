"""Repros: data that reads back as it was written, whole or not at all, and never over another."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fuzz.followup import Failure
from fuzz.replaying import Outcome, Replayer
from fuzz.repro import Repro, check_against, load, make, save, write_atomically
from targets.decoder import DecoderFactory
from targets.protocol import BadInput
from targets.registry import TargetSpec, build


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(*_: object) -> None:
    raise OSError("the disk is full")


def test_a_repro_reads_back_as_it_was_written(repro: Repro, tmp_path: Path) -> None:
    path = save(repro, tmp_path / "deep" / "folder")
    assert path.name == f"{repro.id}.json"
    assert load(path) == repro
    assert msgspec.json.decode(path.read_bytes())["version"] == 1


@pytest.mark.slow
def test_a_repro_fails_again_bit_for_bit_with_the_same_finding(repro: Repro, tmp_path: Path) -> None:
    replayed = Replayer().replay(save(repro, tmp_path))
    assert (replayed.outcome, replayed.same_bits, replayed.error) == (Outcome.FAILED, True, "")
    assert replayed.finding is not None
    assert (replayed.finding.kind, replayed.finding.submission) == (repro.finding.kind, repro.finding.submission)


@pytest.mark.slow
def test_a_repro_whose_bug_is_gone_is_fixed(repro: Repro, tmp_path: Path) -> None:
    mended = msgspec.structs.replace(repro, target=TargetSpec())
    replayed = Replayer().replay(save(mended, tmp_path))
    assert (replayed.outcome, replayed.finding) == (Outcome.FIXED, None)


def test_a_repro_is_never_written_over_another(repro: Repro, tmp_path: Path) -> None:
    path = save(repro, tmp_path)
    before = path.read_bytes()
    assert save(msgspec.structs.replace(repro, seed=8), tmp_path) == path
    assert path.read_bytes() == before
    assert names(tmp_path) == [path.name]


def made(repro: Repro, identity: str | None = None, trace_digest: str | None = None, **changes: object) -> Repro:
    """The same failure made into a repro again, with changes."""
    failure = Failure(
        signature=repro.signature,
        site="",
        schedule=msgspec.structs.replace(repro.schedule, **changes),
        first=repro.finding,
        finding=repro.finding,
        evaluations=repro.evaluations,
        minimal=repro.minimal,
        trace_digest=trace_digest or repro.trace_digest,
        found_after=3,
        found_after_s=1.5,
    )
    factory = build(repro.target)
    factory.identity = identity or factory.identity
    return make(failure, repro.target, factory, bound=1e-9, seed=99)


@pytest.mark.slow
def test_the_same_failure_has_the_same_id_whoever_found_it(repro: Repro) -> None:
    assert made(repro).id == repro.id


def test_another_schedule_has_another_id(repro: Repro) -> None:
    assert made(repro, settings={"slots": 2}).id != repro.id


def test_the_same_schedule_on_other_weights_or_code_has_another_id(repro: Repro) -> None:
    assert made(repro, identity="tiny sha256:0").id != repro.id
    assert made(repro, trace_digest="0" * 64).id != repro.id


def test_a_repro_is_written_whole_or_not_at_all(repro: Repro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(OSError, match="the disk is full"):
        save(repro, tmp_path)
    assert names(tmp_path) == []


def test_a_file_is_replaced_whole_or_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="the disk is full"):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["run.json"]


def test_a_repro_of_another_model_is_refused(repro: Repro, slots: DecoderFactory) -> None:
    check_against(repro, slots, "a.json")
    other = msgspec.structs.replace(repro, identity="tiny sha256:0")
    with pytest.raises(BadInput) as caught:
        check_against(other, slots, "a.json")
    assert str(caught.value) == f"model must be tiny sha256:0, got {slots.identity} (a.json)"
