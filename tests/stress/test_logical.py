"""A schedule against a live endpoint: the order of its ops is kept, and what goes wrong there can be made smaller."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzz.conductor import replay
from stress.judging.asking import endpoint
from stress.judging.opinion import Standing
from stress.judging.panel import judge_of
from stress.recording.logical import play, timed
from stress.recording.over_http import TRIES, OverHttp, store
from stress.recording.timeline import schedule_of
from stress.transcript import Exchange
from targets.decoder import DecoderFactory
from targets.protocol import Cancel, Request, Schedule, Step, Submit, Wait, submissions
from targets.registry import TargetSpec, build
from tests.fuzz.scripted import Honest, Scripted
from tests.stress.test_server import Listening, with_server

ONE, TWO = Request(prompt=(5,), max_new_tokens=6), Request(prompt=(9,), max_new_tokens=3)
LONG = Request(prompt=(9,), max_new_tokens=200)


def test_steps_become_waits_for_what_had_been_heard_by_then() -> None:
    schedule = Schedule(ops=(Step(1), Submit(ONE), Step(2), Submit(TWO), Step(1), Step(1), Cancel(0), Step(4)))
    assert timed(schedule, replay(Scripted(Honest), schedule)).ops == (
        Submit(ONE),
        Wait(0, 2),
        Submit(TWO),
        Wait(1, 2),
        Cancel(0),
    )


@pytest.mark.slow
def test_ops_are_asked_in_their_order(slots: DecoderFactory) -> None:
    schedule = Schedule(ops=(Submit(ONE), Wait(0, 3), Submit(LONG), Wait(1, 1), Cancel(1), Wait(0, 99), Submit(LONG)))

    async def main(server: Listening) -> None:
        async with endpoint(server.url) as served:
            first, second, third = await play(schedule, served)
        assert (first.outcome, second.outcome, third.outcome) == ("answered", "cancelled", "answered")
        assert len(first.tokens) == 6
        assert first.pieces[2].at_s <= second.sent_s
        assert first.ended_s <= third.sent_s
        assert third.tokens[: len(second.tokens)] == second.tokens

    with_server(slots, main)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, "stale-length"])
def test_what_goes_wrong_at_an_endpoint_becomes_a_schedule_of_few_requests(fault: str | None, tmp_path: Path) -> None:
    factory = build(TargetSpec(faults=() if fault is None else (fault,)))
    judge = judge_of(TargetSpec(), build(TargetSpec()), {})
    crowd = [Request(prompt=tuple(range(1, 3 + number)), max_new_tokens=4) for number in range(8)]

    def is_wrong(exchange: Exchange) -> bool:
        return judge.judge("", exchange).standing is Standing.WRONG

    async def main(server: Listening) -> None:
        async with endpoint(server.url) as served:
            over = OverHttp(served, is_wrong)
            heard = await play(Schedule(ops=tuple(map(Submit, crowd))), served)
            assert len(submissions(schedule_of(heard, {}))) == 8
            stored = await store(over, [("a", heard[7])], heard, tmp_path, 1)
        if fault is None:
            assert stored == []
            return
        (found,) = stored
        assert found.requests <= 2, "one leaves its cells, and another reads them; an endpoint that is used has some already"
        assert found.wrong == found.tries == TRIES
        schedule = msgspec.json.decode((tmp_path / found.path).read_bytes(), type=Schedule)
        assert len(submissions(schedule)) == found.requests

    with_server(factory, main)
