"""What a client may ask for: a command line of ours, and nothing that chooses code to run."""

from __future__ import annotations

import pytest
from click import Command

from fuzz.__main__ import main
from stress.jobs.asking import Fuzz, asked, asked_by_form, check
from targets.protocol import BadInput


def test_a_job_is_the_command_line_that_one_would_type() -> None:
    settings = b'"settings": {"slots": "2"}, "in_a_row": 4, "seed": 3, "in_a_row": 4}'
    body = b'{"kind": "fuzz", "target": "pages", "faults": ["late-token"], "schedules": 5, ' + settings
    job = asked(body)
    assert " ".join(job.words()) == (
        "run --target pages --workers 1 --resume --fault late-token --schedules 5 --seed 3 --set slots=2 --in-a-row 4"
    )
    run = main.get_command(main.make_context("slotfuzz", ["run"], resilient_parsing=True), "run")
    assert isinstance(run, Command)
    run.make_context("run", job.words()[1:])  # click takes every word of it


def test_a_form_says_the_same_with_words_and_blanks() -> None:
    fields = {
        "kind": "fuzz",
        "target": "slots",
        "model": " ",
        "faults": "a b",
        "seconds": "9.5",
        "workers": "2",
        "settings": "x=1 y=2",
    }
    job = asked_by_form(fields)
    assert job == Fuzz(faults=("a", "b"), seconds=9.5, workers=2, settings={"x": "1", "y": "2"})


def test_a_load_test_is_one_of_an_endpoint_on_this_machine() -> None:
    job = asked(b'{"kind": "load", "users": 3, "seconds": 5}')
    assert job.words() == ["stress", "--headless", "--host", "http://127.0.0.1:8000", "-u", "3", "-t", "5s"]
    with pytest.raises(BadInput, match="host must be an http address of this machine, got http://example"):
        asked(b'{"kind": "load", "host": "http://example.com"}').words()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"kind": "shell"}',
        b'{"kind": "fuzz", "out": "/tmp"}',
        b'{"kind": "fuzz", "target": "--out"}',
        b'{"kind": "fuzz", "model": "a b"}',
        b'{"kind": "fuzz", "faults": ["--python"]}',
        b'{"kind": "fuzz", "settings": {"slots": "1 --out x"}}',
        b'{"kind": "fuzz", "workers": 0}',
        b'{"kind": "fuzz", "seconds": 1e99}',
    ],
)
def test_whatever_is_no_job_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput, match="job must be JSON of a job that the service takes"):
        asked(body)


def test_a_target_of_one_s_own_must_be_one_that_the_service_was_started_with() -> None:
    own = Fuzz(target="mymodule:factory")
    with pytest.raises(BadInput, match="--allow-target"):
        check(own, ())
    with pytest.raises(BadInput, match=r"target must be a built-in one, or one that the service allows .*, got nope"):
        check(Fuzz(target="nope"), ())
    check(own, {"mymodule:factory"})
    check(Fuzz(target="openvino"), ())
    with pytest.raises(BadInput, match="model must be a model's name"):
        check(Fuzz(model="..weights"), ())
