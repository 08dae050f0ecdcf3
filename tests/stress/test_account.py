"""The target's own account: its replay is what was served, bit for bit, and a part of it is a schedule of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from fuzz.conductor import replay
from stress.endpoint.driver import Driver
from stress.endpoint.orders import Order, Piece
from stress.recording.account import Life, read_lives, recorded
from stress.recording.windows import Account
from stress.transcript import Exchange
from targets.decoder import DecoderFactory
from targets.protocol import BadInput, Cancel, Factory, Request, Schedule, Step, Submit, emitted_by_submission, submissions
from tests.fuzz.scripted import Crowded, Honest, Scripted

SHORT = Request(prompt=(5, 6), max_new_tokens=3)
LONG = Request(prompt=(7, 8, 9), max_new_tokens=40)


def served(factory: Factory, path: Path) -> dict[int, tuple[int, ...]]:
    """What a driver answers that is asked for several things, one of them cancelled; by submission."""
    answers: dict[int, list[int]] = {}

    async def ask(driver: Driver, requests: list[Request], until: int | None = None) -> None:
        order: Order = driver.submit(requests, 60)
        while any(ticket.outcome is None for ticket in order.tickets):
            for event in await order.hear():
                if isinstance(event, Piece):
                    answers.setdefault(order.tickets[event.place].submission, []).append(event.token)
            if until is not None and len(answers.get(order.tickets[0].submission, [])) >= until:
                driver.hang_up(order)
                return

    async def main() -> None:
        with recorded(factory, path) as written:
            driver = Driver(written, {"slots": 2} if factory.name == "slots" else {}, queue_max=16)
            await drive(driver)

    async def drive(driver: Driver) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.run)
            async with trio.open_nursery() as clients:
                clients.start_soon(ask, driver, [LONG], 9)
                clients.start_soon(ask, driver, [SHORT, msgspec.structs.replace(SHORT, sample_of=0)])
                await ask(driver, [SHORT])
                clients.start_soon(ask, driver, [LONG])
            nursery.cancel_scope.cancel()

    trio.run(main)
    return {submission: tuple(tokens) for submission, tokens in answers.items()}


def test_a_replay_of_the_account_is_what_was_served(slots: DecoderFactory, tmp_path: Path) -> None:
    answers = served(slots, tmp_path / "account.jsonl")
    (life,) = read_lives(tmp_path / "account.jsonl")
    emitted = emitted_by_submission(replay(slots, life.schedule))
    assert len(answers) == 5
    for submission, tokens in answers.items():
        replayed = tuple(event.token for event in emitted[life.places[submission]])
        assert replayed[: len(tokens)] == tokens
    cancels = [op for op in life.ops if isinstance(op, Cancel)]
    assert len(cancels) == 1
    assert submissions(life.schedule)[cancels[0].submission] == LONG


def test_a_target_that_raised_begins_another_life(tmp_path: Path) -> None:
    path = tmp_path / "account.jsonl"
    served(Scripted(Crowded), path)
    first, *others = read_lives(path)
    assert others
    assert {0} <= set(first.places)
    assert all(next(iter(life.places.values()), 0) == 0 for life in others), "each life counts from 0"


def test_half_a_line_is_left_out_and_nonsense_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "account.jsonl"
    served(Scripted(Honest), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    (life,) = read_lives(path)
    path.write_bytes(whole)
    (all_of_it,) = read_lives(path)
    assert life.ops == all_of_it.ops[: len(life.ops)] != all_of_it.ops
    path.write_bytes(whole + b"nonsense\n")
    with pytest.raises(BadInput, match="--record must be an account as `slotfuzz serve --record` writes it, got "):
        list(read_lives(path))
    with pytest.raises(BadInput, match="--record must be a file that can be read, got "):
        list(read_lives(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="--record must be a file that can be written, got "):
        recorded(Scripted(Honest), path / "below a file").__enter__()


def test_an_account_makes_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    path = tmp_path / "run" / "account.jsonl"
    with recorded(Scripted(Honest), path):
        assert path.is_file()


def told(number: int, submission: int | None, sent_s: float, ended_s: float) -> Exchange:
    request = Request(prompt=(number + 1,), max_new_tokens=2)
    return Exchange(
        number=number,
        user="one",
        request=request,
        sent_s=sent_s,
        ended_s=ended_s,
        outcome="answered" if submission is not None else "cancelled",
        submission=submission,
    )


def test_windows_grow_from_those_that_met_the_victim_to_the_whole_life() -> None:
    life = Life({}, {number: number for number in range(8)})
    life.ops = [op for number in range(8) for op in (Submit(Request(prompt=(number + 1,), max_new_tokens=2)), Step(2))]
    others = [told(number, number, number, number + 0.5) for number in range(8)]
    others[5] = told(5, 5, 4.2, 5.5)
    windows = list(Account([life], others).windows(others[5], others))
    assert [[request.prompt[0] - 1 for request in submissions(window)] for window in windows] == [
        [4, 5],
        [2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]
    assert windows[0] == Schedule(ops=(*life.ops[8:12],))


def test_a_request_whose_client_was_not_told_is_found_by_what_it_asked() -> None:
    life = Life({}, {10: 0, 11: 1})
    life.ops = [Submit(Request(prompt=(1,), max_new_tokens=2)), Submit(Request(prompt=(2,), max_new_tokens=2))]
    first, second = told(0, 10, 0.0, 1.0), told(1, None, 0.0, 1.0)
    account = Account([Life({}), life], [first, second])
    assert account.place(first) == (1, 0)
    assert account.place(second) == (1, 1)
    assert account.place(told(5, None, 0.0, 1.0)) is None
    assert list(account.windows(told(5, None, 0.0, 1.0), [])) == []
