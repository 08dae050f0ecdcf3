"""Warmth: what is cached for a request, somebody with its tokens and its salt left; a stale hit is told from a leak."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.checks.warmth import warmth
from targets.decoder import DecoderFactory, PageStore, Parts
from targets.decoder.engine import Decoder
from targets.models import Model
from targets.protocol import Admitted, CheckName, Emitted, Event, Kind, Preempted, Request, Schedule, Step, Submit
from tests.oracle.handmade import asked, sentences

SAME = asked((1, 2, 3, 4), (1, 2, 3, 9), (7, 7), new=3)
FIRST: tuple[Event, ...] = (Admitted(0, 0), Emitted(0, 5))


def salted(schedule: Schedule, *salts: int | None) -> Schedule:
    ops = zip(schedule.ops, salts, strict=True)
    return Schedule(ops=tuple(Submit(msgspec.structs.replace(op.request, salt=salt)) for op, salt in ops))


HONEST = {
    "nothing cached": (SAME, (*FIRST, Admitted(1, 1))),
    "as much as they have in common": (SAME, (*FIRST, Admitted(1, 1, cached=3))),
    "its own, after a preemption": (SAME, (*FIRST, Preempted(0, 0), Admitted(0, 1, cached=4))),
    "of one salt": (salted(SAME, 3, 3, 3), (*FIRST, Admitted(1, 1, cached=3))),
}
AMISS = {
    "more than they have in common": (
        SAME,
        (*FIRST, Admitted(2, 1, cached=1)),
        "request #2 has 1 tokens cached, and nobody before it with its salt had more than 0 of them",
    ),
    "of another salt": (
        salted(SAME, 3, 4, 3),
        (*FIRST, Admitted(1, 1, cached=3)),
        "request #1 has 3 tokens cached, and nobody before it with its salt had more than 0 of them",
    ),
    "from nobody": (
        SAME,
        (Admitted(0, 0, cached=2),),
        "request #0 has 2 tokens cached, and nobody before it with its salt had more than 0 of them",
    ),
    "all there is": (
        asked((1, 2), (1, 2), new=3),
        (*FIRST, Admitted(1, 1, cached=2)),
        "request #1 has all its 2 tokens cached, and none is left to give the next one",
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_somebody_can_have_left_is_no_finding(name: str) -> None:
    schedule, trace = HONEST[name]
    assert sentences(warmth, schedule, *trace) == []


@pytest.mark.parametrize("name", AMISS)
def test_what_nobody_can_have_left_is_a_stale_hit(name: str) -> None:
    schedule, trace, sentence = AMISS[name]
    assert sentences(warmth, schedule, *trace) == [sentence]


class StaleStore(PageStore):
    """Half of what a page holds goes stale while nobody refers to it."""

    def end(self, slot: int) -> None:
        pages = list(self.tables[slot])
        super().end(slot)
        for page in pages:
            if page in self.pool.cached:
                for slab in self.values:
                    slab[:, page] *= 0.5


def judged(factory: DecoderFactory) -> list[tuple[Kind, CheckName]]:
    turn = Request(prompt=tuple(range(1, 20)), max_new_tokens=2)
    again = Request(prompt=(*range(1, 20), 40, 41), max_new_tokens=2)
    schedule = Schedule(ops=(Submit(turn), Step(3), Submit(again)), settings={"page_size": 4})
    return [(found.kind, found.check) for found in run_trio(Judge(factory).judge, schedule).findings]


@pytest.mark.slow
def test_a_hit_whose_cells_went_stale_is_a_stale_hit_and_an_honest_one_is_nothing(tiny: Model) -> None:
    assert judged(DecoderFactory(tiny, name="pages")) == []
    stale = Parts(decoder=Decoder, store=StaleStore)
    assert judged(DecoderFactory(tiny, stale, "pages")) == [(Kind.STALE_HIT, CheckName.WARMTH)]
