from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from targets import attention
from targets.decoder import Decoder, DecoderFactory, Feed, Parts, Runner
from targets.decoder.running import Running
from targets.faults import find_faults, planted
from targets.models import Model, find_model
from targets.protocol import Control, Event, Factory, Preempted, Request, Setting, Step, Submit
from tests.targets import conformance


class SetUp:
    """A factory like another one, whose targets are opened with other defaults."""

    def __init__(self, factory: DecoderFactory, **settings: Setting) -> None:
        self.factory = factory
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self.factory, name)

    def open(self, settings: Mapping[str, Setting]) -> Decoder:
        return self.factory.open({**self.settings, **settings})

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        return self.factory.context_tokens_max({**self.settings, **settings})


def everything_on(**settings: Setting) -> Factory:
    """Pages so few and so small that requests give way to each other, in pieces, a step late, in padded batches."""
    together: dict[str, Setting] = {
        "page_size": 4,
        "pool_tokens": 32,
        "pipelined": True,
        "step_tokens_max": 8,
        "pad_batch": True,
        "references": "grouped",
    }
    return SetUp(DecoderFactory(find_model("tiny"), name="pages"), **{**together, **settings})  # type: ignore[return-value]


FACTORIES: dict[str, Callable[[], Factory]] = {
    "slots on tiny": lambda: DecoderFactory(find_model("tiny")),
    "slots on tiny-bloom": lambda: DecoderFactory(find_model("tiny-bloom")),
    "slots on tiny-bamba": lambda: DecoderFactory(find_model("tiny-bamba")),
    "slots on tiny-olmo-hybrid": lambda: DecoderFactory(find_model("tiny-olmo-hybrid")),
    "pages on tiny": lambda: DecoderFactory(find_model("tiny"), name="pages"),
    "private on tiny": lambda: DecoderFactory(find_model("tiny"), name="private"),
    "threads on tiny": lambda: DecoderFactory(find_model("tiny"), name="threads"),
    "threads with a lock": lambda: SetUp(DecoderFactory(find_model("tiny"), name="threads"), lock=True, turns=3),  # type: ignore[dict-item,return-value]
    "threads on tiny-bamba": lambda: DecoderFactory(find_model("tiny-bamba"), name="threads"),
    "pages, everything on": everything_on,
    "pages, everything on, moved": lambda: everything_on(preempt="move"),
    "static on tiny": lambda: DecoderFactory(find_model("tiny"), name="static"),
    "static on tiny-gpt2, right, in buckets": lambda: SetUp(
        DecoderFactory(find_model("tiny-gpt2"), name="static"), padding_side="right", bucket_tokens=4, gather_steps=0
    ),  # type: ignore[dict-item,return-value]
    "packed on tiny": lambda: DecoderFactory(find_model("tiny"), name="packed"),
    "packed on tiny-gpt2, in chunks, a step late": lambda: SetUp(
        DecoderFactory(find_model("tiny-gpt2"), name="packed"), step_tokens_max=16, pipelined=True
    ),  # type: ignore[dict-item,return-value]
    "slots that guess": lambda: SetUp(DecoderFactory(find_model("tiny")), speculate=4),  # type: ignore[dict-item,return-value]
    "pages that guess": lambda: SetUp(  # type: ignore[dict-item,return-value]
        DecoderFactory(find_model("tiny"), name="pages"), speculate=2, page_size=4, pool_tokens=48
    ),
    "encoder on tiny-bert": lambda: DecoderFactory(find_model("tiny-bert"), name="encoder"),
    "encoder on tiny-swin": lambda: DecoderFactory(find_model("tiny-swin"), name="encoder"),
    "seq2seq on tiny-t5": lambda: DecoderFactory(find_model("tiny-t5"), name="seq2seq"),
    "seq2seq on tiny-bart": lambda: DecoderFactory(find_model("tiny-bart"), name="seq2seq"),
    "pictures on tiny-llava": lambda: DecoderFactory(find_model("tiny-llava"), name="pictures"),
    "attention with its cache passed in and out": attention.honest,
}


@pytest.mark.slow
@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("name", FACTORIES)
def test_a_target_conforms(name: str, claim: Callable[[Factory], None]) -> None:
    claim(FACTORIES[name]())


@pytest.mark.slow
def test_requests_do_give_way_where_everything_is_on() -> None:
    for factory in (everything_on(), everything_on(preempt="move")):
        trace = conformance.play(factory, [*map(Submit, conformance.requests(factory)), Step()])
        assert any(isinstance(event, Preempted) for event in trace)


def assert_breaks(claim: Callable[[Factory], None], factory: Factory, sentence: str) -> None:
    with pytest.raises(AssertionError) as caught:
        claim(factory)
    assert str(caught.value).startswith(sentence)


def test_the_ladder_breaks_at_two_where_the_cache_is_in_the_module() -> None:
    assert_breaks(conformance.the_ladder_is_climbed, attention.shared(), "2 requests at once: #")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "claim", "sentence"),
    [
        ("global-cache-overwritten", conformance.the_ladder_is_climbed, "2 requests at once: #"),
        ("late-token", conformance.the_ladder_is_climbed, "8 requests at once: #"),
        ("starved", conformance.the_ladder_is_climbed, "8 requests: Stalled("),
        ("cancel-frees-twice", conformance.a_cancel_leaves_the_others_alone, "a cancel of #0 after 1 steps: #"),
        ("state-by-client-id", conformance.ids_may_be_reused, "six requests of one id, live together: #"),
        ("token-lost-on-finish", conformance.everything_ends, "10 requests: #0 was streamed "),
        ("cancel-never-frees", conformance.nothing_is_held_at_the_end, "held at the end: "),
        ("global-cache-appended", conformance.an_inspection_is_of_the_last_step, "#0 has 13 cells, and 3 of its tokens"),
    ],
)
def test_a_planted_fault_breaks_a_claim(tiny: Model, fault: str, claim: Callable[[Factory], None], sentence: str) -> None:
    assert_breaks(claim, DecoderFactory(tiny, planted(find_faults([fault]))), sentence)


def test_a_target_whose_arithmetic_moves_is_not_deterministic(tiny: Model) -> None:
    forwards = itertools.count()

    class Drifting(Runner):
        def forward(self, feeds: list[Feed]) -> torch.Tensor:  # type: ignore[override]
            return super().forward(feeds) + 1e-9 * next(forwards)

    factory = DecoderFactory(tiny, Parts(decoder=Decoder, runner=Drifting))
    assert_breaks(conformance.two_replays_are_the_same, factory, "two replays of one schedule differ: event ")


def test_a_target_that_takes_in_what_it_cannot_serve_does_not_conform(tiny: Model) -> None:
    class Careless(Decoder):
        def refusal(self, request: Request) -> None:
            return None

    factory = DecoderFactory(tiny, Parts(decoder=Careless))
    assert_breaks(conformance.a_refusal_leaves_the_others_alone, factory, "6 requests: Stalled(")


class Unforced(Decoder):
    def token_of(self, running: Running, greedy: int) -> int:
        return greedy


class Roundabout(Decoder):
    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        return super().step()


class Mute(Decoder):
    def accept(self, running: Running, token: int, logits: torch.Tensor) -> Event:
        return super().accept(running, token, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decoder", "sentence"),
    [
        (Unforced, "("),
        (Roundabout, "#2 alone was named, and [0, 1, 2] got tokens"),
        (Mute, "logits come exactly where the target declares them"),
    ],
)
def test_a_target_that_does_not_keep_what_it_declares_does_not_conform(
    tiny: Model, decoder: type[Decoder], sentence: str
) -> None:
    assert_breaks(conformance.what_is_declared_is_kept, DecoderFactory(tiny, Parts(decoder=decoder)), sentence)


def test_what_is_not_declared_is_not_asked_for(tiny: Model) -> None:
    factory = DecoderFactory(tiny, Parts(decoder=Unforced))
    factory.control = Control(rows=True, logits=True, audit=True, float64=True)
    conformance.what_is_declared_is_kept(factory)
