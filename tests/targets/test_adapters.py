"""Real engines: those installed pass the conformance suite; what is missing is said with the command that brings it."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from fuzz import repro as repros
from fuzz import script
from fuzz.conductor import replay
from fuzz.replaying import Outcome, Replayer
from targets.adapters import ADAPTERS, Adapter, tiny_llama
from targets.protocol import (
    BadInput,
    Cancel,
    Counted,
    Crashed,
    Emitted,
    Factory,
    Finished,
    Preempted,
    Request,
    Schedule,
    Setting,
    Stalled,
    Step,
    Submit,
)
from targets.registry import TargetSpec, build
from tests.targets import conformance

KNOWN = {"ctranslate2", "llamacpp", "openvino", "transformers-cb", "transformers-threaded"}
BY_URL = {"openai"}
SLOW = {"transformers-threaded"}
"""Its loop and its clients share an interpreter: some 20 times slower than stepped, for the same claims."""
CONFORMING = [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in sorted(KNOWN)]


def installed(name: str) -> Factory:
    adapter = ADAPTERS[name]
    if adapter.missing:
        pytest.skip(f"{name} needs {' and '.join(adapter.missing)} ({adapter.install})")
    return build(TargetSpec(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("name", CONFORMING)
def test_a_real_engine_conforms(name: str, claim: Callable[[Factory], None]) -> None:
    claim(installed(name))


def test_the_adapters_are_those_that_are_tested() -> None:
    assert set(ADAPTERS) == KNOWN | BY_URL


def test_a_url_at_which_nobody_lists_models_is_refused_before_anything_is_measured() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(BadInput, match=f"model must be the URL of a server that lists its models, got {url} "):
            build(TargetSpec("openai", url))


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that answers every GET with this body; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_server_that_is_not_openai_compatible_is_refused() -> None:
    with (
        answering(b"<html>hello</html>") as url,
        pytest.raises(BadInput, match=f"model must be the URL of a server that lists its models, got {url} "),
    ):
        build(TargetSpec("openai", url))


def test_a_server_that_lists_its_models_is_taken() -> None:
    with answering(b'{"data": []}') as url:
        assert build(TargetSpec("openai", f"{url}#some-model")).identity.endswith("served as some-model")


def test_no_url_at_all_is_listed_and_not_played() -> None:
    factory = build(TargetSpec("openai"))
    rule = "model must be the URL of an OpenAI-compatible server, as http://127.0.0.1:8000/v1, got nothing (--model)"
    for use in (factory.network, factory.open):
        with pytest.raises(BadInput) as refused:
            use({})
        assert str(refused.value) == rule


def test_what_is_not_installed_is_refused_with_the_command_that_brings_it() -> None:
    absent = Adapter(
        title="Nothing",
        what="nothing",
        module="targets.adapters.llamacpp",
        needs=("no_such_engine",),
        extra="nothing",
        packages=(),
        form="gguf",
        imports=(),
    )
    with pytest.raises(BadInput) as caught:
        absent.check_installed("nothing")
    assert str(caught.value) == (
        "target must be one that is installed (pip install 'slotfuzz[nothing]'), got nothing, which needs no_such_engine"
        " (--target)"
    )


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_factory_is_there_without_its_engine_and_says_its_knobs(name: str) -> None:
    factory = build(TargetSpec(name), here=False)
    assert factory.knobs
    assert all(knob.default in knob.values for knob in factory.knobs)
    with pytest.raises(BadInput):
        build(TargetSpec(name, faults=("stale-length",)), here=False)


def test_every_form_of_tiny_llama_is_what_its_own_tool_wrote(tmp_path: Path) -> None:
    gguf = tiny_llama.write_gguf(tmp_path / "tiny.gguf").read_bytes()
    weights = (tiny_llama.write_openvino(tmp_path / "openvino") / "openvino_model.bin").read_bytes()
    assert hashlib.sha256(gguf).hexdigest() == tiny_llama.GGUF_SHA256
    assert hashlib.sha256(weights).hexdigest() == tiny_llama.OPENVINO_SHA256
    assert (tiny_llama.write_hf(tmp_path / "hf") / "config.json").is_file()


def played(name: str, *ops: Submit | Step | Cancel, **settings: Setting) -> tuple[object, ...]:
    return replay(installed(name), Schedule(ops=ops, settings=settings))


def asked(*prompt: int, new: int) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_small_cache_makes_requests_of_transformers_give_way() -> None:
    trace = played("transformers-cb", asked(*range(1, 7), new=12), asked(*range(2, 9), new=13), num_blocks=3)
    assert any(isinstance(event, Preempted) for event in trace)
    ends = {event.submission for event in trace if isinstance(event, Finished)}
    assert ends == {0, 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cancel_while_another_waits_to_come_back_hangs_transformers() -> None:
    """Found by a campaign, in 5.24.0: nobody is admitted until a request finishes, and a cancelled one never does."""
    ops = (asked(*[1] * 6, new=12), asked(*[2] * 7, new=13), Step(12), Cancel(1))
    trace = played("transformers-cb", *ops, num_blocks=3)
    assert [event.submissions for event in trace if isinstance(event, Stalled)] == [(0,)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_several_answers_to_a_prompt_of_one_token_break_transformers() -> None:
    """Found by a campaign, in 5.24.0."""
    trace = played("transformers-cb", asked(1, new=1), num_return_sequences=2)
    assert [event.doing for event in trace if isinstance(event, Crashed)] == ["step"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_likely_is_told_of_each_token_of_transformers() -> None:
    emitted = [event for event in played("transformers-cb", asked(5, 6, new=3)) if isinstance(event, Emitted)]
    assert [event.logprobs[0][0] for event in emitted] == [event.token for event in emitted]


def counted(trace: tuple[object, ...], name: str) -> int:
    return [event.counts for event in trace if isinstance(event, Counted)][-1][name]


def answers(trace: tuple[object, ...]) -> dict[int, tuple[int, ...]]:
    return {event.submission: event.tokens for event in trace if isinstance(event, Finished)}


FORKS: dict[str, dict[str, Setting]] = {
    "llamacpp": {"n_cmpl": 3},
    "openvino": {"num_return_sequences": 3},
    "transformers-cb": {"num_return_sequences": 3},
    "transformers-threaded": {"num_return_sequences": 3},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORKS)
def test_who_asks_the_same_at_once_is_forked_from_the_first(name: str) -> None:
    trace = played(name, *[asked(5, 6, 7, new=4)] * 2, asked(8, 9, new=4), **FORKS[name])
    alone = played(name, asked(5, 6, 7, new=4)), played(name, asked(8, 9, new=4))
    first, other = (answers(each)[0] for each in alone)
    assert answers(trace) == {0: first, 1: first, 2: other}
    assert counted(trace, "forked") == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_answers_that_nobody_asked_for_hold_nobody_up_at_llama() -> None:
    trace = played("llamacpp", *[asked(5, 6, 7, new=12)] * 4, n_cmpl=3)
    assert sorted(answers(trace)) == [0, 1, 2, 3]
    assert len(set(answers(trace).values())) == 1


WAYS: list[tuple[str, str, dict[str, Setting]]] = [
    ("llamacpp", "slots_moved", {"slots_after": "moved"}),
    ("llamacpp", "slots_erased", {"slots_after": "erased"}),
    ("ctranslate2", "unloaded", {"unload": "idle"}),
    ("ctranslate2", "unloaded", {"unload": "idle to memory"}),
    ("ctranslate2", "batch_split", {"max_batch_size": 1}),
    ("ctranslate2", "batch_split", {"max_batch_size": 3, "batch_type": "tokens"}),
    ("openvino", "several_tokens_a_step", {"drafts": "itself", "assistant_confidence_threshold": 0.2}),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "what", "settings"), WAYS, ids=lambda value: str(value))
def test_a_knob_moves_what_it_says_and_no_answer(name: str, what: str, settings: dict[str, Setting]) -> None:
    ops = (asked(*[5, 6] * 8, new=20), asked(8, 9, new=4), Step(60), asked(*[5, 6] * 8, new=6), asked(1, 2, 3, new=5))
    plain, moved = played(name, *ops), played(name, *ops, **settings)
    assert answers(moved) == answers(plain)
    assert counted(moved, what) > 0


FINDINGS = sorted((Path(__file__).parent / "findings").glob("*.json"))
AGAIN = [pytest.param(path, marks=() if path.stem.startswith("transformers") else pytest.mark.long) for path in FINDINGS]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", AGAIN, ids=lambda path: path.stem)
def test_what_was_found_in_a_real_engine_is_found_again(path: Path) -> None:
    """With the versions in which it was found; with others it may be FIXED, which is no failure of ours."""
    repro = repros.load(path)
    installed(repro.target.target)
    packages = ADAPTERS[repro.target.target].packages
    if any(version(package).split("+")[0] != repro.versions[package].split("+")[0] for package in packages):
        pytest.skip(f"found in {', '.join(f'{package} {repro.versions[package]}' for package in packages)}")
    replayer = Replayer()
    try:
        assert replayer.replay(path).outcome is Outcome.FAILED
    finally:
        replayer.close()


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_a_finding_becomes_a_program_of_its_own(tmp_path: Path, path: Path) -> None:
    repro = repros.load(path)
    model = script.write(repro, tmp_path / "shows.py")
    text = (tmp_path / "shows.py").read_text()
    compile(text, "shows.py", "exec")
    assert model.exists()
    assert "slotfuzz" not in text.partition('"""\n\n')[2]


def test_a_target_that_is_no_real_engine_has_no_program_of_its_own(tmp_path: Path) -> None:
    repro = msgspec.structs.replace(repros.load(FINDINGS[0]), target=TargetSpec("slots"))
    with pytest.raises(BadInput) as caught:
        script.write(repro, tmp_path / "shows.py")
    assert str(caught.value).startswith("--script must be left out for a target other than transformers-cb, llamacpp, ")
