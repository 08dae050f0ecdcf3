"""Mechanisms: each is counted where it happens, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz.conductor import replay
from fuzz.mechanisms import MECHANISMS, mechanisms
from targets.decoder import DecoderFactory
from targets.models import Model
from targets.protocol import (
    Audited,
    Cancel,
    Op,
    Preempted,
    Request,
    Sampling,
    Schedule,
    Setting,
    Step,
    Stepped,
    Submit,
    Wait,
)


def ask(*prompt: int, new: int = 3, **extras: object) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, **extras))  # type: ignore[arg-type]


ONE_SLOT: dict[str, Setting] = {"slots": 1}
EVERY_TOKEN = tuple(range(320))

STORIES: dict[str, tuple[Sequence[Op], dict[str, Setting]]] = {
    "slot_reuse": ([ask(1), ask(2)], ONE_SLOT),
    "join_while_decoding": ([ask(1), Step(), ask(2)], {}),
    "leave_while_decoding": ([ask(1), ask(2, new=1)], {}),
    "longest_leaves_first": ([ask(1), ask(2, 3, new=1)], {}),
    "queued": ([ask(1, new=2), Step(), ask(2)], ONE_SLOT),
    "cancel_queued": ([ask(1), Cancel(0)], {}),
    "cancel_first_token": ([ask(1), Step(), Cancel(0)], {}),
    "cancel_decoding": ([ask(1, new=4), Step(2), Cancel(0)], {}),
    "cancel_last_step": ([ask(1), Step(2), Cancel(0)], {}),
    "cancel_ended": ([ask(1), Step(3), Cancel(0)], {}),
    "deadline": ([ask(1, deadline_s=1)], {}),
    "stop": ([ask(1, stop=EVERY_TOKEN)], {}),
    "context_limit": ([ask(1, new=9)], {"context_tokens_max": 4}),
    "refused": ([ask()], {}),
    "id_reused": ([ask(1, client_id=0), Step(3), ask(2, client_id=0)], {}),
    "id_reused_live": ([ask(1, client_id=0), ask(2, client_id=0)], {}),
    "shared_prefix": ([ask(1, 2, 3), ask(1, 2, 4)], {}),
    "identical_prompt": ([ask(1, 2), ask(1, 2)], {}),
    "rows_named": ([ask(1), Step(rows=(0,))], {}),
    "wait": ([ask(1), Wait(0, 1)], {}),
    "long": ([ask(1, new=512), Cancel(0)], {}),
    "sampled": ([ask(1, new=1, sampling=Sampling(temperature=1.0))], {}),
    "penalised": ([ask(1, sampling=Sampling(frequency_penalty=1.0))], {}),
    "biased": ([ask(1, sampling=Sampling(allowed=(1, 2)))], {}),
    "min_new_tokens": ([ask(1, stop=(1,), sampling=Sampling(min_new_tokens=1))], {}),
    "stop_sequence": ([ask(1, stop_sequences=tuple((token,) for token in EVERY_TOKEN))], {}),
    "logprobs": ([ask(1, new=1, sampling=Sampling(logprobs=2))], {}),
}
"""A small story for each, in which it happens once."""

PLAIN = [
    pytest.param([ask(1)], id="one request"),
    pytest.param([ask(1), Step(3), ask(2)], id="one after the other, in another slot"),
    pytest.param([ask(1), Step(3), ask(2, client_id=0)], id="ids that differ"),
    pytest.param(
        [ask(1, sampling=Sampling(seed=5, min_new_tokens=2), stop_sequences=((400,),))], id="nothing that can show"
    ),
    pytest.param([ask(1, new=1, forced=(5,), sampling=Sampling(temperature=1.0, presence_penalty=2.0))], id="all is forced"),
]


def test_every_mechanism_has_its_story() -> None:
    assert tuple(STORIES) == MECHANISMS


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_fires_in_its_story(slots: DecoderFactory, name: str) -> None:
    ops, settings = STORIES[name]
    schedule = Schedule(ops=tuple(ops), settings=settings)
    assert mechanisms(schedule, replay(slots, schedule))[name] == 1


@pytest.mark.parametrize("ops", PLAIN)
def test_none_fires_where_nothing_happens(slots: DecoderFactory, ops: Sequence[Op]) -> None:
    schedule = Schedule(ops=tuple(ops), settings={"slot_order": "fifo"})
    assert not +mechanisms(schedule, replay(slots, schedule))


CROWD = [ask(*range(start, start + 9), new=10) for start in (20, 40, 60)]
FEW_PAGES: dict[str, Setting] = {"page_size": 4, "pool_tokens": 32}


def test_what_a_target_says_that_it_did_is_counted_as_it_was_at_the_end(tiny: Model) -> None:
    factory = DecoderFactory(tiny, name="pages")
    schedule = Schedule(ops=tuple(CROWD), settings=FEW_PAGES)
    trace = replay(factory, schedule)
    told = [event.audit.counts for event in trace if isinstance(event, Audited)]
    fired = mechanisms(schedule, trace)
    assert told[-1]["preempted"] == fired["preempted"] == sum(isinstance(event, Preempted) for event in trace) > 0
    assert {name: fired[name] for name in told[-1]} == told[-1]
    assert "copied_on_write" in told[-1], "what never happened is told of as well"


def test_without_accounts_nothing_is_counted_that_only_the_target_can_tell(tiny: Model) -> None:
    schedule = Schedule(ops=tuple(CROWD), settings=FEW_PAGES)
    trace = tuple(event for event in replay(DecoderFactory(tiny, name="pages"), schedule) if not isinstance(event, Audited))
    assert "preempted" not in mechanisms(schedule, trace)


@pytest.mark.parametrize(("victim", "state"), [(2, "cancel_queued"), (1, "cancel_preempted"), (0, "cancel_last_step")])
def test_a_cancel_is_counted_by_the_state_that_it_meets(tiny: Model, victim: int, state: str) -> None:
    factory = DecoderFactory(tiny, name="pages")
    plain = replay(factory, Schedule(ops=tuple(CROWD), settings=FEW_PAGES))
    before = plain[: next(index for index, event in enumerate(plain) if isinstance(event, Preempted))]
    steps = sum(isinstance(event, Stepped) for event in before)
    schedule = Schedule(ops=(*CROWD, Step(steps), Cancel(victim)), settings=FEW_PAGES)
    fired = mechanisms(schedule, replay(factory, schedule))
    assert {name: count for name, count in fired.items() if name.startswith("cancel") and count} == {state: 1}
