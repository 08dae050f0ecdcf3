"""The plan of a load: what is bad use, and that a load gun points at nobody by accident."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from stress.load.plan import FEATURES, check_host
from targets.protocol import BadInput
from tests.stress.locusts import planned


def test_defaults_ask_everything_of_this_machine() -> None:
    plan = planned()
    assert (plan.mix, plan.arrivals, plan.prompts, plan.route) == (FEATURES, "closed", "ids", "completions")
    assert plan.verify == (), "answers are judged unless somebody says otherwise"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_s": None}, "--run-time must be given, as in `--run-time 60s`: a load is always bounded in time, got nothing"),
        ({"run_s": 7 * 86_400 + 1}, "--run-time must be at most 7 days, got 604801 s"),
        ({"host": None}, "--host must be an address like http://127.0.0.1:8000, got nothing"),
        ({"host": "127.0.0.1:80"}, "--host must be an address like http://127.0.0.1:8000, got 127.0.0.1:80"),
        ({"host": "ftp://127.0.0.1"}, "--host must be an address like http://127.0.0.1:8000, got ftp://127.0.0.1"),
        ({"host": "http://[::1"}, "--host must be an address like http://127.0.0.1:8000, got http://[::1"),
        ({"mix": "lengths,nap"}, f"--mix must be one or more of {', '.join(FEATURES)}, got nap"),
        ({"arrivals": "poisson", "mix": "sessions"}, "--mix must be without sessions where arrivals are open: "),
        ({"arrivals": "never"}, "--arrivals must be one of closed, constant, poisson, got never"),
        ({"rate": "0"}, "--rate must be a number in 0.001..100,000, got 0"),
        ({"rate": "nan"}, "--rate must be a number in 0.001..100,000, got nan"),
        ({"seed": "-1"}, "--seed must be a whole number in 0..1e+09, got -1"),
        ({"noise": "8"}, "--noise must be fewer than all users (8), so that somebody is disturbed, got 8"),
        ({"slo_ttft_ms": "fast"}, "--slo-ttft-ms must be a number in 0.001..1e+09, got fast"),
        ({"trace": "/nowhere"}, "--trace must be a file that is there, got /nowhere"),
        ({"api_key_file": "/nowhere"}, "--api-key-file must be a file of ASCII that can be read, got /nowhere"),
    ],
)
def test_bad_use_is_told_in_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as told:
        planned(**changes)
    assert str(told.value).startswith(message)


@pytest.mark.parametrize(
    "host", ["http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8000/v1", "http://localhost:8000/"]
)
def test_this_machine_may_be_loaded(host: str) -> None:
    assert check_host(host, remote=False) == host.removesuffix("/").removesuffix("/v1")


def test_other_machines_may_not_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_: object, **__: object) -> list[Any]:
        return [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("10.0.0.1", 0))]

    for host in ("http://10.0.0.1:80", "http://0.0.0.0:80", "https://[2001:db8::1]"):
        with pytest.raises(BadInput, match="this is a load gun"):
            check_host(host, remote=False)
        assert check_host(host, remote=True) == host
    monkeypatch.setattr(socket, "getaddrinfo", both)
    with pytest.raises(BadInput, match="this is a load gun"):
        check_host("http://half.example", remote=False)


def test_a_key_is_read_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret-secret\n")
    assert planned(api_key_file=str(path)).api_key == "secret-secret"
    path.write_text("short")
    with pytest.raises(BadInput) as told:
        planned(api_key_file=str(path))
    assert "short" not in str(told.value)
