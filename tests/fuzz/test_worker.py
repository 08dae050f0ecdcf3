"""The worker: traces as in process, and whatever the target does to its process is an event and ends nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from fuzz.conductor import replay, run_trio
from fuzz.stage import InProcess
from fuzz.wire import Said, decode_from_worker, encode, take_frame
from fuzz.worker import COLD_S, HANG_S, HANG_TIMES, Patience, Worker, stage_for
from targets.protocol import (
    Asked,
    Attended,
    BadInput,
    Cancel,
    Crashed,
    Emitted,
    Event,
    Op,
    Request,
    Schedule,
    Setting,
    Stalled,
    Step,
    Stepped,
    Submit,
    Trace,
    Wait,
    digest,
    first_departure,
)
from targets.registry import TargetSpec, build
from tests.fuzz.dying import Zoo

ZOO = TargetSpec("tests.fuzz.dying:Zoo")
PATIENT_S = 30.0
HASTY_S = 1.5


def ask(new: int = 2) -> Submit:
    return Submit(Request(prompt=(1,), max_new_tokens=new))


def going(way: str, *ops: Op) -> Schedule:
    """Three requests at once, then these ops, on the animal of that name."""
    return Schedule(ops=(ask(), ask(3), ask(), *ops), settings={"way": way})


def busy(**settings: Setting) -> Schedule:
    """A deadline, a cancel, a wait, and requests that come and go."""
    return Schedule(
        ops=(
            Submit(Request(prompt=(1, 2, 3), max_new_tokens=6, client_id=1)),
            Submit(Request(prompt=(4,), max_new_tokens=9, deadline_s=4)),
            Step(2),
            Cancel(0),
            Submit(Request(prompt=(1, 2), max_new_tokens=3)),
            Wait(2, 2),
            Submit(Request(prompt=(7,), max_new_tokens=2)),
        ),
        settings=settings,
    )


def played(worker: Worker, schedule: Schedule) -> Trace:
    return run_trio(worker.play, schedule)


def last(trace: Trace) -> Event:
    """The last event, wherever it was raised."""
    event = trace[-1]
    return msgspec.structs.replace(event, at="") if isinstance(event, Crashed) else event


def vanishes(pid: int) -> bool:
    """Whether a process is gone within ten seconds; one that only waits to be waited for is."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def patient() -> Iterator[Worker]:
    """One for all tests whose target survives, or who take its death into account."""
    worker = Worker(ZOO, Patience(PATIENT_S))
    yield worker
    worker.close()


@pytest.fixture
def hasty() -> Iterator[Worker]:
    worker = Worker(ZOO, Patience(HASTY_S))
    yield worker
    worker.close()


@pytest.mark.slow
def test_a_trace_through_a_worker_is_the_one_in_process_bit_for_bit_in_every_dtype() -> None:
    worker = Worker(TargetSpec(), Patience(PATIENT_S))
    factory = build(worker.spec)
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        schedule = busy(dtype=dtype, slots=2)
        there, here = played(worker, schedule), replay(factory, schedule)
        assert first_departure(there, here) is None
        assert digest(there) == digest(here)
        assert {event.logits.dtype for event in there if isinstance(event, Emitted) and event.logits is not None} == {
            getattr(torch, dtype)
        }
    worker.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["honest", "hungry", "loud"])
def test_what_a_target_reads_and_prints_does_not_disturb_its_trace(patient: Worker, way: str) -> None:
    assert digest(played(patient, going(way, Step()))) == digest(replay(Zoo(), going("honest", Step())))


@pytest.mark.slow
def test_other_libraries_integers_and_half_precision_rows_arrive(patient: Worker) -> None:
    there, here = played(patient, going("foreign")), replay(Zoo(), going("foreign"))
    assert digest(there) == digest(here)
    assert {type(event.token) for event in there if isinstance(event, Emitted)} == {int}


@pytest.mark.slow
def test_settings_that_are_not_the_target_s_are_bad_input_and_leave_the_worker_as_it_was(patient: Worker) -> None:
    played(patient, going("honest"))
    child = patient.pid
    with pytest.raises(BadInput, match=r"^knob must be one of way, got size$"):
        played(patient, busy(size=1))
    assert digest(played(patient, busy())) == digest(replay(Zoo(), busy()))
    assert patient.pid == child


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("leaving", Crashed("step", "SystemExit: enough", (0, 1, 2))),
        ("nonsense", "ValidationError: Expected `int`, got `str` - at `$.events[0].token`"),
        ("untold", "TypeError: 'object' object cannot be said"),
        ("unreasonable", "ValidationError: Invalid enum value 'whim' - at `$.events[1].reason`"),
    ],
)
def test_an_exit_or_an_answer_that_is_none_is_a_crash_and_no_death(patient: Worker, way: str, error: object) -> None:
    trace = played(patient, going(way))
    assert [type(event) for event in trace].count(Crashed) == 1
    crash = last(trace)
    assert isinstance(crash, Crashed)
    assert not crash.fatal
    assert error in (crash, crash.error)
    assert digest(trace) == digest(played(patient, going(way)))


@pytest.mark.slow
def test_an_abort_ends_the_trace_with_the_call_under_way_and_the_next_schedule_finds_a_new_process() -> None:
    worker = Worker(ZOO, Patience(PATIENT_S))
    first, second = (played(worker, going("aborting", Step())) for _ in range(2))
    assert last(first) == Crashed("step", "was killed by SIGABRT", (0, 1, 2), fatal=True)
    assert digest(first) == digest(second)
    words = worker.last_words()
    assert words[:2] == ("terminate called: no row 3 at 0x…", "Fatal Python error: Aborted")
    assert re.fullmatch(r'File ".*dying\.py", line \d+ in step', words[2])
    assert worker.pid is None
    assert digest(played(worker, busy())) == digest(replay(Zoo(), busy()))
    assert worker.last_words() == ()
    worker.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "ops", "end"),
    [
        ("segfaulting", (), Crashed("step", "was killed by SIGSEGV", (0, 1, 2), fatal=True)),
        ("exiting", (Cancel(1),), Crashed("cancel", "exited with status 3", (1,), fatal=True)),
        ("abortsinaudit", (), Crashed("audit", "was killed by SIGABRT", (0, 1, 2), fatal=True)),
        ("abortsinclose", (), Crashed("close", "was killed by SIGABRT", (), fatal=True)),
        ("unopenable", (), Crashed("open", "was killed by SIGABRT", (), fatal=True)),
        ("rebelling", (), Crashed("step", "was killed by SIGINT", (0, 1, 2), fatal=True)),
    ],
)
def test_whatever_ends_the_process_is_named_with_the_call_under_way(
    patient: Worker, way: str, ops: tuple[Op, ...], end: Crashed
) -> None:
    trace = played(patient, going(way, *ops))
    assert last(trace) == end
    assert [type(event) for event in trace].count(Crashed) == 1


@pytest.mark.slow
def test_what_was_emitted_before_a_death_is_in_the_trace(patient: Worker) -> None:
    trace = played(patient, Schedule(ops=(ask(5), ask(5), Step(2), ask()), settings={"way": "aborting"}))
    assert [event.token for event in trace if isinstance(event, Emitted) and event.submission == 0] == [2, 3]
    assert trace[-4:-1] == (Asked(4), Stepped(2)) or trace[-3:-1] == (Asked(4), Stepped(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "end"),
    [
        ("sleeping", Stalled((0, 1), 0, "submit")),
        ("spinning", Stalled((0, 1, 2), 0, "step")),
        ("ranting", Stalled((0, 1, 2), 0, "step")),
    ],
)
def test_a_call_that_never_comes_back_is_killed_and_stalls_whoever_was_live(hasty: Worker, way: str, end: Stalled) -> None:
    played(hasty, going("honest"))
    child = hasty.pid
    assert child is not None
    assert last(played(hasty, going(way))) == end
    waited, *_, where = hasty.last_words()
    assert re.fullmatch(r"said nothing for \d+\.\d s, then it was killed", waited)
    assert way == "ranting" or re.fullmatch(r'File ".*", line \d+ in \w+', where)
    assert vanishes(child)
    assert hasty.pid is None


@pytest.mark.slow
def test_nothing_that_a_target_starts_outlives_its_death(
    patient: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.close()
    monkeypatch.setenv("HEIR", str(tmp_path / "heir"))
    assert last(played(patient, going("begetting"))) == Crashed("step", "was killed by SIGABRT", (0, 1, 2), fatal=True)
    assert vanishes(int((tmp_path / "heir").read_text()))


@pytest.mark.slow
def test_a_target_that_cannot_be_built_in_a_process_of_its_own_is_bad_input() -> None:
    worker = Worker(TargetSpec("tests.fuzz.dying:unbuildable"), Patience(PATIENT_S))
    rule = "target must be one that can be built in a process of its own, got one that was killed by SIGABRT"
    with pytest.raises(BadInput, match=rf"^{rule} \(tests\.fuzz\.dying:unbuildable File .* in unbuildable\)$"):
        played(worker, busy())
    worker.spec = TargetSpec("tests.fuzz.dying:nobody")
    with pytest.raises(BadInput, match=r"^target must be package\.module:factory that can be imported and called, got "):
        played(worker, busy())
    assert worker.pid is None


def test_an_interpreter_that_is_none_is_named_where_it_ends_without_a_word() -> None:
    true = Path("/bin/true")
    worker = Worker(TargetSpec("tests.fuzz.dying:zoo"), Patience(PATIENT_S), python=true)
    with pytest.raises(BadInput) as caught:
        played(worker, busy())
    said = f"--python must be a Python interpreter that can build the target, got {true} (one that exited with status 0)"
    assert str(caught.value) == said


@pytest.mark.slow
def test_a_renewed_worker_has_a_child_of_its_own_and_closing_leaves_none() -> None:
    worker = Worker(ZOO, Patience(PATIENT_S))
    other = worker.renewed()
    for each in (worker, other):
        played(each, going("honest"))
    children = [worker.pid, other.pid]
    assert len(set(children)) == 2
    worker.close()
    other.close()
    assert all(child is not None and vanishes(child) for child in children)


def test_a_target_is_cold_until_a_replay_has_come_to_its_end_and_slow_ones_are_given_time() -> None:
    patience = Patience()
    assert patience.limit_s == COLD_S
    patience.learn(0.01)
    assert patience.limit_s == HANG_S
    patience.learn(1.0)
    patience.learn(0.1)
    assert patience.limit_s == HANG_TIMES


def test_seconds_that_were_asked_for_are_kept_but_for_targets_that_are_slower() -> None:
    patience = Patience(0.5)
    assert patience.limit_s == 0.5
    patience.learn(0.01)
    assert patience.limit_s == 0.5
    patience.learn(1.0)
    assert patience.limit_s == HANG_TIMES


@pytest.mark.slow
def test_a_target_that_hangs_while_it_is_cold_is_asked_something_simple_and_not_waited_for_so_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuzz.worker.COLD_S", 2 * HASTY_S)
    worker = Worker(ZOO, Patience())
    assert last(played(worker, going("sleeping"))) == Stalled((0, 1), 0, "submit")
    assert worker.patience.limit_s == 2 * HASTY_S
    # This schedule never comes to its end, but one request of one token does.
    assert isinstance(last(played(worker, going("segfaulting"))), Crashed)
    assert worker.patience.longest_s
    assert worker.patience.limit_s >= HANG_S
    worker.close()


def test_only_a_user_s_own_target_is_played_in_a_worker_and_only_if_not_told_otherwise() -> None:
    assert isinstance(stage_for(ZOO, Zoo()), Worker)
    assert isinstance(stage_for(ZOO, Zoo(), in_process=True), InProcess)
    assert isinstance(stage_for(TargetSpec(), Zoo()), InProcess)


def test_tags_and_masks_arrive_as_they_were_said() -> None:
    tags, visible = torch.arange(6).view(1, 2, 3), torch.tensor([[[True, False, True], [False, False, True]]])
    said = Said([Attended((0, 1), (1, 1), (0,), tags, visible)])
    heard = decode_from_worker(take_frame(bytearray(encode(said))) or b"")
    assert isinstance(heard, Said)
    (event,) = heard.events
    assert isinstance(event, Attended)
    assert torch.equal(event.tags, tags)
    assert torch.equal(event.visible, visible)
