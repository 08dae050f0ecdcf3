"""`slotfuzz serve`: what is bad use, and how it is said."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuzz.__main__ import main


def slotfuzz(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="slotfuzz")


def test_the_command_is_listed_with_those_of_the_lower_floors() -> None:
    told = slotfuzz("--help").output
    assert "  run  " in told
    assert "  serve  " in told
    assert "  stress  " in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--port", "70000"), "--port must be a whole number in 0..65,535, got 70000"),
        (("--queue-max", "0"), "--queue-max must be a whole number in 1..1,000,000, got 0"),
        (("--fault", "nope"), "fault must be one of "),
        (("--set", "slots=0"), "slots must be a whole number in 1..1024, got 0 (--set)"),
        (("--colour",), "option must be one that the command has (see --help), got --colour"),
        (("--target", "nope:nope"), "target must be package.module:factory that can be imported and called"),
    ],
)
def test_bad_use_is_one_sentence(words: tuple[str, ...], message: str) -> None:
    told = slotfuzz("serve", *words)
    assert told.exit_code == 2
    assert told.output.startswith(message)
    assert len(told.output.splitlines()) == 1


def test_a_port_that_is_taken_is_bad_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = slotfuzz("serve", "--port", port)
    assert told.exit_code == 2
    assert told.output.startswith(f"--host, --port must be an address that can be listened on, got 127.0.0.1:{port}")


@pytest.mark.parametrize("key", [None, "", "short", "two words in it", "schlüssel-schlüssel"])
def test_a_key_file_must_have_a_key(tmp_path: Path, key: str | None) -> None:
    path = tmp_path / "key"
    if key is not None:
        path.write_text(key)
    told = slotfuzz("serve", "--api-key-file", path)
    assert told.exit_code == 2
    assert told.output.startswith("--api-key-file must be a file ")
    assert key is None or not key or key not in told.output, "a key is not shown"


def test_without_its_packages_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("stress.endpoint")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    told = slotfuzz("serve")
    assert told.exit_code == 2
    assert told.output == "slotfuzz serve must be installed (pip install 'slotfuzz[stress]'), got no hypercorn\n"


def test_a_target_that_jobs_may_import_is_named_as_one_imports_it(tmp_path: Path) -> None:
    told = slotfuzz("service", "--out", tmp_path, "--allow-target", "foo")
    assert (told.exit_code, told.output) == (2, "--allow-target must be package.module:factory, got foo\n")
