"""Bad input: exit 2, one sentence that says what and where, nothing written, no traceback."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from torch import nn

from fuzz.__main__ import main
from fuzz.judge import Judge
from fuzz.repro import Repro
from targets.protocol import BadInput
from tests.fuzz.scripted import Honest, Scripted

Change = Callable[[dict[str, Any]], object]


def slotfuzz(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="slotfuzz")


def refused(result: Result) -> str:
    """The one line on stderr of a command that was refused."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "Traceback" not in result.output
    return line


def request(repro: dict[str, Any], which: int = 0) -> dict[str, Any]:
    """A Submit's request in a repro as plain JSON."""
    submits: list[dict[str, Any]] = [op for op in repro["schedule"]["ops"] if op["type"] == "submit"]
    found: dict[str, Any] = submits[which]["request"]
    return found


def put(*path: str | int, value: object) -> Change:
    """Sets one field."""

    def change(repro: dict[str, Any]) -> None:
        at: Any = repro
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value

    return change


def asked(name: str, value: object) -> Change:
    """Sets one field of the first request."""
    return lambda repro: request(repro).update({name: value})


def added(op: dict[str, object]) -> Change:
    """Adds an op."""
    return lambda repro: repro["schedule"]["ops"].append(op)


WRONG: dict[str, tuple[Change, str]] = {
    "another version": (put("version", value=2), "version 1"),
    "another schedule version": (put("schedule", "version", value=2), "$.schedule.version"),
    "an unknown field": (put("colour", value="red"), "unknown field `colour`"),
    "an unknown field of the schedule": (put("schedule", "colour", value="red"), "$.schedule"),
    "an unknown field of the target": (put("target", "colour", value="red"), "$.target"),
    "an unknown field of the finding": (put("finding", "colour", value="red"), "$.finding"),
    "an unknown field of a request": (asked("colour", "red"), "unknown field `colour` - at `$.schedule.ops[0].request`"),
    "an unknown op": (added({"type": "explode"}), "explode"),
    "a missing field": (lambda repro: repro.pop("schedule"), "schedule"),
    "a text for a number": (asked("max_new_tokens", "4"), "max_new_tokens"),
    "a token past the vocabulary": (asked("prompt", [1, 321]), "token id must be in 0..319, got 321 (request #0, "),
    "a stop id past the vocabulary": (asked("stop", [4000]), "token id must be in 0..319, got 4000 (request #0, "),
    "a forced token past the vocabulary": (asked("forced", [400]), "token id must be in 0..319, got 400 (request #0, "),
    "a negative token": (asked("prompt", [-1]), "prompt"),
    "a huge token": (asked("prompt", [2**40]), "prompt"),
    "a token that is huge beyond all integers": (asked("prompt", [10**40]), "prompt"),
    "a negative budget": (asked("max_new_tokens", -4), "max_new_tokens"),
    "a huge budget": (asked("max_new_tokens", 10**12), "max_new_tokens"),
    "a negative deadline": (asked("deadline_s", -1), "deadline_s"),
    "a negative step": (added({"type": "step", "count": -1}), "count"),
    "a huge step": (added({"type": "step", "count": 10**9}), "count"),
    "a cancel of nobody": (
        added({"type": "cancel", "submission": 2}),
        "submission must be one of the 2 submissions before it",
    ),
    "a wait for nobody": (
        added({"type": "wait", "submission": 9, "tokens": 1}),
        "submission must be one of the 2 submissions before it, got 9",
    ),
    "a row of nobody": (
        added({"type": "step", "rows": [5]}),
        "submission must be one of the 2 submissions before it, got 5",
    ),
    "a negative submission": (added({"type": "cancel", "submission": -1}), "submission"),
    "an unknown knob": (put("schedule", "settings", "colour", value=1), "knob must be one of admit_max, "),
    "a knob out of its range": (
        put("schedule", "settings", "slots", value=-1),
        "slots must be a whole number in 1..1024, got -1",
    ),
    "a knob of another type": (
        put("schedule", "settings", "slots", value=True),
        "slots must be a whole number in 1..1024, got True",
    ),
    "another model": (put("identity", value="tiny sha256:0"), "model must be tiny sha256:0, got tiny sha256:"),
    "an unknown model": (put("target", "model", value="nobody"), "model must be one of tiny, "),
    "an unknown fault": (put("target", "faults", value=["nobody"]), "fault must be one of "),
    "an unknown target": (put("target", "target", value="nobody"), "target must be one of slots, "),
    "a target of one's own that nobody named": (
        put("target", "target", value="nobody.at:home"),
        "--target must be nobody.at:home for this repro, got none",
    ),
    "an id that is a path": (put("id", value="../../escape"), "$.id"),
    "negative evaluations": (put("evaluations", value=-1), "evaluations"),
    "a negative seed": (put("seed", value=-1), "seed"),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG)
def test_a_repro_that_is_wrong_is_refused_in_one_sentence(repro: Repro, tmp_path: Path, change: Change, says: str) -> None:
    fields = msgspec.json.decode(msgspec.json.encode(repro))
    change(fields)
    path = tmp_path / "repro.json"
    path.write_bytes(msgspec.json.encode(fields))
    line = refused(slotfuzz("replay", path))
    assert says in line
    assert str(path) in line or "--" in line
    assert list(tmp_path.iterdir()) == [path]


CONTENT = {
    "empty": b"",
    "not JSON": b"all is well",
    "half a file": b'{"version": 1, "id":',
    "a list": b"[]",
    "not text": b"\xff\xfe\x00",
    "nested without end": b"[" * 200_000,
    "a pickle": pickle.dumps({"version": 1}),
    "NaN": b'{"version": NaN}',
}


@pytest.mark.parametrize("content", CONTENT.values(), ids=CONTENT)
def test_a_file_that_is_no_repro_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "repro.json"
    path.write_bytes(content)
    line = refused(slotfuzz("replay", path))
    assert line.startswith("ERROR   repro must be JSON of a repro, version 1, got ")
    assert str(path) in line


def test_a_path_that_does_not_exist_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "nobody.json"
    expected = f"ERROR   repro must be a file that can be read, got {path} (No such file or directory)"
    assert refused(slotfuzz("replay", path)) == expected
    assert "(Is a directory)" in refused(slotfuzz("replay", tmp_path))


@pytest.mark.slow
def test_a_repro_that_is_wrong_does_not_keep_the_others_from_being_replayed(repro: Repro, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(msgspec.json.encode(repro))
    bad.write_bytes(b"{}")
    result = slotfuzz("replay", bad, good)
    assert result.exit_code == 2
    assert result.stdout.startswith("FAILED")


FLAGS: dict[str, tuple[list[str], str]] = {
    "fault": (["--fault", "nobody"], "fault must be one of global-cache-overwritten, "),
    "target": (
        ["--target", "nobody"],
        "target must be one of slots, pages, private, ",
    ),
    "target that cannot be imported": (["--target", "nobody.at:home"], "target must be package.module:factory"),
    "target without a name": (["--target", "targets.attention:nobody"], "target must be package.module:factory"),
    "target that is no factory": (
        ["--target", "os:getpid"],
        "target must be a targets.protocol.Factory, got int, without context_tokens_max, control, ",
    ),
    "target that needs arguments": (["--target", "json:dumps"], "target must be "),
    "time to hang for a target of ours": (
        ["--hang-seconds", "3"],
        "--hang-seconds must be left out for a target that is played in this process, got 3",
    ),
    "target without a module": (["--target", ":x"], "target must be "),
    "target relative to nothing": (["--target", "..x:y"], "target must be "),
    "model": (["--model", "nobody"], "model must be one of tiny, "),
    "model of a target that has its own": (
        ["--target", "targets.attention:honest", "--model", "nobody"],
        "model must be ",
    ),
    "fault of a target of one's own": (
        ["--target", "targets.attention:honest", "--fault", "late-token"],
        "fault must be left out for a target of your own, got late-token (--fault)",
    ),
    "dtype": (["--dtype", "int8"], "dtype must be one of float64, float32, bfloat16, float16, got int8 (--dtype)"),
    "device": (["--device", "toaster"], "device must be one of cpu"),
    "knob": (["--set", "colour=red"], "knob must be one of slots, "),
    "knob's value": (["--set", "slots=many"], "slots must be a whole number in 1..1024, got many (--set)"),
    "knob's range": (["--set", "slots=0"], "slots must be a whole number in 1..1024, got 0 (--set)"),
    "knob's word": (["--set", "slot_order=best"], "slot_order must be one of lifo, fifo, got best (--set)"),
    "setting without a value": (["--set", "slots"], "--set must be KNOB=VALUE, got slots"),
    "sanitize": (
        ["--sanitize", "--target", "targets.attention:honest"],
        "--sanitize must be left out for a target that keeps no shadow tags, got targets.attention:honest",
    ),
    "sanitize twice": (["--sanitize", "--set", "sanitize=False"], "knob must be set once, got sanitize (--set)"),
    "poison": (["--set", "poison=nan"], "poison must be one of none, low, high, got nan (--set)"),
    "workers": (["--workers", "0"], "--workers must be a whole number in 1..1,024, got 0"),
    "python of our own target": (["--python", "python3"], "--python must be left out for a target that is played in this "),
    "python that is none": (
        ["--target", "llamacpp", "--python", "nowhere"],
        "--python must be a Python interpreter, got nowhere",
    ),
    "out that is a file": (["--out", "taken"], "--out must be "),
    "json in no folder": (
        ["--json", "nowhere/run.json"],
        "--json must be a plain file in a folder that exists, got nowhere/run.json",
    ),
    "json that is a folder": (["--json", "folder"], "--json must be "),
}


@pytest.mark.parametrize(("words", "says"), FLAGS.values(), ids=FLAGS)
def test_a_flag_that_is_wrong_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "folder").mkdir()
    line = refused(slotfuzz("run", "--schedules", 1, "--seed", 1, *words))
    assert line.startswith(says)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "taken"]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--schedules", "0"],
        ["run", "--seconds", "-1"],
        ["run", "--seconds", "nan"],
        ["run", "--seed", "-1"],
        ["run", "--seed", "99999999999999999999"],
        ["run", "--nonsense"],
        ["run", "--fault"],
        ["bench", "nonsense"],
        ["replay"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_words_that_are_no_use_are_refused_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] == "run":
        words = [*words, "--target", "targets.attention:honest"]
        words += [] if "--schedules" in words else ["--schedules", "1"]
    refused(slotfuzz(*words))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["replay", "repro.json"], ["bench", "speed", "--schedules", "1"]], ids=lambda words: words[0]
)
def test_a_json_that_cannot_be_written_is_refused_before_the_work(
    repro: Repro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repro.json").write_bytes(msgspec.json.encode(repro))
    assert refused(slotfuzz(*command, "--json", "nowhere/x.json")).startswith("--json must be ")


def test_a_folder_that_cannot_be_made_is_refused_before_any_work_is_done() -> None:
    told = refused(slotfuzz("run", "--out", "/proc/nowhere/deep"))
    assert told == "--out must be a folder that can be written, got /proc/nowhere/deep"


def test_a_module_that_exits_when_it_is_imported_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refused(slotfuzz("run", "--target", "leaving:factory")).endswith(
        "got leaving:factory (SystemExit: 0, at leaving.py:2, in <module>)"
    )


def test_a_network_that_cannot_be_asked_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(self: Scripted, settings: object) -> nn.Module:
        raise RuntimeError("no network today")

    monkeypatch.setattr(Scripted, "network", network)
    rule = "target must be one whose network can be asked, got Honest \\(RuntimeError: no network today\\)"
    with pytest.raises(BadInput, match=rule):
        Judge(Scripted(Honest)).reference({})


def test_nothing_at_all_gives_the_help_and_is_bad_use() -> None:
    told = slotfuzz()
    assert told.exit_code == 2
    assert len(told.stderr.splitlines()) > 10
