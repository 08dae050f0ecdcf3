"""Preemption: where pages run out the youngest gives way, the oldest never does, and nobody's answer shows it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from targets.decoder import Decoder, DecoderFactory
from targets.protocol import Admitted, Event, Preempted, Reason, Request, Sampling, Setting
from tests.targets.decoder.driving import (
    alone,
    assert_all_given_back,
    close,
    drain,
    logits,
    request,
    submit,
    tokens,
)

WAYS = ["recompute", "move"]
SMALL: dict[str, Setting] = {"page_size": 4, "pool_tokens": 32, "prefix_cache": False}
"""Eight pages, where three of the requests below come to five each."""
ASKED = [request(*range(start, start + 9), new=10) for start in (20, 40, 60)]


def preempted(events: list[Event]) -> list[int]:
    return [event.submission for event in events if isinstance(event, Preempted)]


def crowded(paged: DecoderFactory, *asked: Request, **changes: Setting) -> tuple[Decoder, list[Event]]:
    """What requests that come together are given by a decoder with too few pages."""
    decoder = paged.open({**SMALL, **changes})
    return decoder, submit(decoder, *asked) + drain(decoder, 400)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"prefix_cache": True}, {"pipelined": True}, {"step_tokens_max": 4}, {"references": "grouped"}, {"slots": 2}],
    ids=str,
)
def test_an_answer_is_the_one_that_is_given_undisturbed(
    paged: DecoderFactory, way: str, changes: dict[str, Setting]
) -> None:
    decoder, events = crowded(paged, *ASKED, preempt=way, **changes)
    assert preempted(events)
    for who, asked in enumerate(ASKED):
        assert close(logits(events, who), alone(paged, asked))
    counts = decoder.audit().counts
    assert counts["preempted"] == len(preempted(events))
    assert counts["swapped_in"] == counts["swapped_out"] == (len(preempted(events)) if way == "move" else 0)
    decoder.step()
    assert_all_given_back(decoder)


PARAMETERS = [
    Sampling(temperature=1.3, seed=5),
    Sampling(repetition_penalty=1.4, presence_penalty=0.7, frequency_penalty=0.4),
    Sampling(bias=((7, 30.0),), min_new_tokens=4, temperature=0.8, seed=9, logprobs=2),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pipelined", [False, True])
def test_so_it_is_with_sampling_parameters(paged: DecoderFactory, way: str, pipelined: bool) -> None:
    asked = [
        request(*each.prompt, new=10, sampling=sampling, stop=(7,)) for each, sampling in zip(ASKED, PARAMETERS, strict=True)
    ]
    _, events = crowded(paged, *asked, preempt=way, pipelined=pipelined)
    assert preempted(events)
    undisturbed = paged.open({})
    assert tokens(events) == tokens(submit(undisturbed, *asked) + drain(undisturbed))


@pytest.mark.parametrize("way", WAYS)
def test_the_youngest_gives_way_and_comes_back_before_those_behind_it(paged: DecoderFactory, way: str) -> None:
    late = request(1, new=2)
    decoder, events = crowded(paged, *ASKED, late, preempt=way, slots=3, pool_tokens=36)
    assert preempted(events)[0] == 2
    assert 0 not in preempted(events)
    order = [event.submission for event in events if isinstance(event, Admitted)]
    assert order.index(3) > max(place for place, who in enumerate(order) if who == 2)
    assert decoder.audit().counts["preempted"] > 0


def test_moved_cells_come_back_bit_for_bit(paged: DecoderFactory) -> None:
    decoder = paged.open({**SMALL, "preempt": "move", "pool_tokens": 64})
    submit(decoder, ASKED[0])
    for _ in range(3):
        decoder.step()
    before = decoder.inspect().cells[0]
    decoder.preempt(decoder.live[0])
    assert decoder.audit().queued == (0,)
    for slab in (*decoder.store.keys, *decoder.store.values):  # type: ignore[attr-defined]
        slab.fill_(9.0)
    (back,) = [event for event in decoder.admit(None) if isinstance(event, Admitted)]
    assert back.cached == 11
    after = decoder.inspect().cells[0]
    assert all((a == b).all() for a, b in zip((*before.keys, *before.values), (*after.keys, *after.values), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_a_preempted_request_that_is_cancelled_leaves_nothing_behind(paged: DecoderFactory, way: str) -> None:
    decoder = paged.open({**SMALL, "preempt": way})
    events = submit(decoder, *ASKED)
    while not preempted(events):
        events += decoder.step()
    (victim,) = preempted(events)
    assert victim in decoder.audit().queued
    events += decoder.cancel(victim, Reason.CANCELLED) + drain(decoder)
    assert tokens(events)[0] == tuple(alone(paged, ASKED[0]).argmax(-1).tolist())
    assert_all_given_back(decoder)


LIVES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4, 7, 8, 9, 14]),  # tokens of the prompt
        st.integers(1, 10),  # new ones
        st.integers(0, 3),  # steps before it comes
        st.sampled_from([None, None, 1, 3, 6]),  # steps after which it is cancelled
        st.booleans(),  # whether it begins as the first one does
    ),
    min_size=1,
    max_size=5,
)
KNOBS = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 3, 4]),
        "preempt": st.sampled_from(WAYS),
        "pipelined": st.booleans(),
        "prefix_cache": st.booleans(),
        "references": st.sampled_from(["each", "grouped"]),
        "page_order": st.sampled_from(["lifo", "fifo"]),
        "step_tokens_max": st.sampled_from([0, 1, 5]),
        "slots": st.integers(1, 4),
        "pad_batch": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=60)
@given(LIVES, KNOBS)
def test_in_the_smallest_pool_that_lets_all_in_the_oldest_never_gives_way_and_all_end(
    paged: DecoderFactory, lives: list[tuple[int, int, int, int | None, bool]], knobs: dict[str, Setting]
) -> None:
    size = int(knobs["page_size"])
    most = max(-(-(length + new - 1) // size) for length, new, *_ in lives)
    decoder = paged.open({**knobs, "pool_tokens": most * size})
    asked: list[Request] = []
    events: list[Event] = []
    ends: dict[int, int] = {}
    steps = 0

    def step() -> None:
        nonlocal steps
        running = sorted(decoder.batch.submissions)
        said = decoder.step()
        steps += 1
        gone = preempted(said)
        assert not running or running[0] not in gone, "the oldest never gives way"
        events.extend(said)
        for who in [who for who, when in ends.items() if when <= steps]:
            del ends[who]
            events.extend(decoder.cancel(who, Reason.CANCELLED))

    for who, (length, new, wait, cancelled, alike) in enumerate(lives):
        first = 10 if alike else 10 + 20 * who
        sibling = 0 if alike and who else None
        asked.append(request(*range(first, first + length), new=new, sample_of=sibling))
        events += decoder.submit(who, asked[-1])
        if cancelled is not None:
            ends[who] = steps + wait + cancelled
        for _ in range(wait):
            step()
    bound = 10 + 4 * sum(len(each.prompt) + each.max_new_tokens for each in asked) * len(asked)
    while decoder.live:
        assert steps < bound, f"{sorted(decoder.live)} had not ended after {steps} steps"
        step()
    step()
    assert_all_given_back(decoder)
    given_ = tokens(events)
    for who, each in enumerate(asked):
        whole = tuple(alone(paged, each).argmax(-1).tolist())
        heard = given_.get(who, ())
        assert heard == whole[: len(heard)]
        assert len(heard) == len(whole) or lives[who][3] is not None
