from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fuzz.conductor import replay
from fuzz.meter import Meter
from targets.decoder import DecoderFactory, Turns
from targets.models import Model
from targets.protocol import Schedule, Setting, Submit, emitted_by_submission
from tests.targets.decoder.driving import request

ASKED = (request(1, 2, new=3), request(3, new=3), request(4, 5, 6, new=3))


def lines_of(order: int, threads: int = 3, lines: int = 3, kept: bool = False) -> list[tuple[int, int]]:
    """Who wrote which of its lines, where each hands over after every line."""
    turns, written = Turns(order), []

    def job(number: int) -> Callable[[], None]:
        def go() -> None:
            with turns.keep(kept):
                for line in range(lines):
                    written.append((number, line))
                    turns.hand_over()

        return go

    turns.run([job(number) for number in range(threads)])
    return written


def test_turns_go_round_and_round() -> None:
    assert lines_of(0) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]


def test_a_seed_gives_one_order_and_another_one_another() -> None:
    orders = {order: lines_of(order) for order in (1, 2, 3)}
    assert all(lines_of(order) == lines for order, lines in orders.items())
    assert len({tuple(lines) for lines in orders.values()}) == 3
    for lines in orders.values():
        assert all([line for who, line in lines if who == number] == [0, 1, 2] for number in range(3))


def test_who_keeps_its_turn_is_done_before_anybody_goes_on() -> None:
    assert lines_of(0, kept=True) == [(who, line) for who in range(3) for line in range(3)]


def test_each_job_has_a_thread_of_its_own_and_none_is_left() -> None:
    before, seen, turns = threading.active_count(), [], Turns(0)
    turns.run([lambda: (seen.append(threading.get_ident()), turns.hand_over())[1]] * 3)
    assert len({*seen, threading.get_ident()}) == 4
    assert threading.active_count() == before
    assert turns.finished == [0, 1, 2]


def test_what_a_thread_raises_is_raised_when_the_others_are_done() -> None:
    turns, done = Turns(0), []

    def broken() -> None:
        turns.hand_over()
        raise IndexError("no such cell")

    def sound() -> None:
        for _ in range(5):
            turns.hand_over()
        done.append(True)

    with pytest.raises(IndexError) as caught:
        turns.run([sound, broken])
    assert str(caught.value) == "no such cell"
    assert done == [True]
    assert turns.current is None


@pytest.mark.parametrize("settings", [{}, {"turns": 1}, {"turns": 7}, {"lock": True}, {"growth": "cat"}])
def test_threads_answer_as_the_requests_alone_bit_for_bit(tiny: Model, settings: dict[str, Setting]) -> None:
    factory = DecoderFactory(tiny, name="threads")
    together = emitted_by_submission(replay(factory, Schedule(ops=tuple(map(Submit, ASKED)), settings=settings)))
    for who, asked in enumerate(ASKED):
        alone = emitted_by_submission(replay(factory, Schedule(ops=(Submit(asked),), settings=settings)))[0]
        for ours, theirs in zip(together[who], alone, strict=True):
            assert ours.logits is not None
            assert theirs.logits is not None
            assert ours.logits.equal(theirs.logits)


def test_threads_hand_over_within_their_forwards_and_not_under_a_lock(tiny: Model) -> None:
    for lock, handed_over in ((False, True), (True, False)):
        decoder = DecoderFactory(tiny, name="threads").open({"lock": lock})
        for who, asked in enumerate(ASKED):
            decoder.submit(who, asked)
        decoder.step()
        assert bool(decoder.audit().counts["handed_over"]) is handed_over


def test_time_in_forwards_of_several_threads_is_counted_once(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("fuzz.meter.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    factory, meter = DecoderFactory(tiny, name="threads"), Meter()
    meter.watch(factory.module({}))
    replay(factory, Schedule(ops=tuple(Submit(request(token, new=1)) for token in (1, 2, 3))))
    assert meter.forwards == 3
    assert meter.seconds == 1.0, "one look at the clock as the first began, and one as the last ended"
