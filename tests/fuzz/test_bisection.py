"""Bisection and its neighbours: what they cannot tell, they do not say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fuzz.bisection import is_past
from fuzz.conductor import run_trio
from fuzz.judge import Judge
from fuzz.locate import shares_cells, watched
from fuzz.watch import Watch
from oracle.finding import Finding
from targets.decoder import Decoder, DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import (
    Admitted,
    CheckName,
    Event,
    Finished,
    Inspection,
    Kind,
    Preempted,
    Reason,
    Request,
    Schedule,
    Setting,
    Submit,
)

END = Finished(0, Reason.LENGTH, ())


@pytest.mark.parametrize(
    ("events", "past"),
    [
        ((Admitted(0, 0), END, Admitted(1, 0)), True),
        ((Admitted(0, 0), Admitted(1, 1), END), False),
        ((Admitted(0, 0), Admitted(1, 1), Preempted(1, 1), Admitted(1, 1), END), False),
        ((Admitted(0, 0), Admitted(1, 1), Preempted(1, 1), END, Admitted(1, 0)), None),
        ((Admitted(0, 0), END), None),
    ],
    ids=["ended before", "beside it", "beside it twice", "beside it, and ended before it came back", "never admitted"],
)
def test_a_source_is_of_the_past_where_it_had_ended_whenever_the_victim_was_admitted(
    events: tuple[Event, ...], past: bool | None
) -> None:
    finding = Finding(kind=Kind.LEAK, check=CheckName.SWAP, what="said so", submission=1, sources=(0,))
    assert is_past(events, finding) is past


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("slots", {"pipelined": True}),
        ("slots", {"step_tokens_max": 1}),
        ("pages", {"page_size": 1}),
        ("pages", {"page_size": 4, "pool_tokens": 8, "pipelined": True}),
        ("private", {"growth": "cat", "pad_batch": True}),
    ],
    ids=str,
)
def test_two_requests_of_a_clean_target_have_no_cells_in_common_in_any_mode(
    tiny: Model, target: str, settings: dict[str, Setting]
) -> None:
    assert shares_cells(DecoderFactory(tiny, name=target), settings) is False


@pytest.mark.parametrize("settings", [{"pipelined": True}, {"step_tokens_max": 1}], ids=str)
def test_those_that_share_storage_do_in_any_mode(tiny: Model, settings: dict[str, Setting]) -> None:
    factory = DecoderFactory(tiny, FAULTS["global-cache-overwritten"].plant())
    assert shares_cells(factory, settings) is True


class Mumbling(Decoder):
    """Cannot say whose the rows of its third step are."""

    def inspect(self) -> Inspection:
        if len(self.live[0].answer) == 3:
            raise LookupError("lost count")
        return super().inspect()


class MumblingFactory(DecoderFactory):
    def open(self, settings: Mapping[str, Setting]) -> Decoder:
        self.parts = self.parts.with_(decoder=Mumbling)
        return super().open(settings)


def test_what_an_inspection_raises_is_told_with_the_step_that_it_was_of(tiny: Model) -> None:
    factory = MumblingFactory(tiny)
    judge = Judge(factory)
    schedule = Schedule(ops=(Submit(Request(prompt=(1, 2), max_new_tokens=6)),))

    async def follow() -> Watch:
        return await watched(factory, judge.reference, schedule, 0, to_the_end=True)

    assert run_trio(follow).why == "looking at step 2 raised LookupError: lost count"
