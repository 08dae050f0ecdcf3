"""A repro for strangers: other tokens, the same pattern, the same failure."""

from __future__ import annotations

import random

import msgspec
import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.case import Alphabet
from stress.recording.anonymous import anonymous, renamed
from targets.protocol import BadInput, Kind, Request, Sampling, Schedule, Submit, submissions
from targets.registry import TargetSpec, build
from tests.stress.failing import repro_of

ALPHABET = Alphabet(320, (256, 257))
RICH = Request(
    prompt=(1, 2, 1, 257),
    max_new_tokens=3,
    stop=(257, 2),
    stop_sequences=((1, 2),),
    salt=1234,
    client_id=77,
    forced=(2,),
    sampling=Sampling(bias=((2, 5.0),), allowed=(1, 2, 256)),
)


def test_equal_ids_stay_equal_wherever_they_stand_and_special_ids_stay() -> None:
    other = msgspec.structs.replace(RICH, prompt=(2, 3), salt=1234, client_id=5)
    first, second = submissions(renamed(Schedule(ops=(Submit(RICH), Submit(other))), ALPHABET, random.Random(1)))
    one, two, again, special = first.prompt
    assert one == again != two
    assert special == 257
    assert first.stop == (257, two)
    assert first.stop_sequences == ((one, two),)
    assert first.forced == (two,)
    assert first.sampling == Sampling(bias=((two, 5.0),), allowed=(one, two, 256))
    assert second.prompt[0] == two != second.prompt[1]
    assert (first.salt, second.salt, first.client_id, second.client_id) == (0, 0, 0, 1)


def test_no_two_ids_become_one() -> None:
    everything = Request(prompt=tuple(range(320)), max_new_tokens=1)
    (moved,) = submissions(renamed(Schedule(ops=(Submit(everything),)), ALPHABET, random.Random(2)))
    assert sorted(moved.prompt) == list(range(320))
    assert moved.prompt != everything.prompt


@pytest.mark.slow
def test_the_same_failure_shows_with_other_tokens() -> None:
    repro = repro_of("stale-length", Kind.LEAK)
    factory = build(repro.target)
    found = run_trio(anonymous, repro, factory, Judge(factory), 5)
    assert found is not None
    assert (found.signature, found.finding.kind, found.finding.check) == (
        repro.signature,
        repro.finding.kind,
        repro.finding.check,
    )
    before, after = (submissions(each.schedule) for each in (repro, found))
    assert [len(request.prompt) for request in after] == [len(request.prompt) for request in before]
    assert after != before
    assert (found.id != repro.id, found.seed) == (True, 0)


@pytest.mark.slow
def test_a_repro_that_is_fixed_is_bad_input() -> None:
    repro = msgspec.structs.replace(repro_of("stale-length", Kind.LEAK), target=TargetSpec())
    factory = build(repro.target)
    with pytest.raises(BadInput, match="REPRO must be one that fails, got "):
        run_trio(anonymous, repro, factory, Judge(factory), 5)
