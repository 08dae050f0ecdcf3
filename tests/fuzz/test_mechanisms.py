"""Mechanisms: each is counted where it happens, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz.conductor import replay
from fuzz.mechanisms import MECHANISMS, mechanisms
from targets.decoder import DecoderFactory
from targets.protocol import Cancel, Op, Request, Sampling, Schedule, Setting, Step, Submit, Wait


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
