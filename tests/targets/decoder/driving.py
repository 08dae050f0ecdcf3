"""Drives a decoder by hand: no conductor, no clients, one call at a time."""

from __future__ import annotations

import torch

from targets.decoder import Decoder, DecoderFactory
from targets.models import Model
from targets.protocol import Admitted, Emitted, Event, Finished, Reason, Request, Setting, emitted_by_submission


def opened(model: Model, **settings: Setting) -> Decoder:
    """A fresh decoder of a fresh factory."""
    return DecoderFactory(model).open(settings)


def request(*prompt: int, new: int = 4, **extras: object) -> Request:
    """A request for `new` tokens."""
    return Request(prompt=prompt, max_new_tokens=new, **extras)  # type: ignore[arg-type]


def submit(decoder: Decoder, *requests: Request, start: int = 0) -> list[Event]:
    """Hands requests in, numbered from `start`; what the decoder said at once."""
    return [event for who, asked in enumerate(requests, start) for event in decoder.submit(who, asked)]


def drain(decoder: Decoder, steps_max: int = 100) -> list[Event]:
    """Steps until nobody is left."""
    events: list[Event] = []
    for _ in range(steps_max):
        if not decoder.live:
            return events
        events += decoder.step()
    raise AssertionError(f"{sorted(decoder.live)} had not ended after {steps_max} steps")


def admitted(events: list[Event]) -> list[tuple[int, int]]:
    """(submission, slot) of every admission."""
    return [(event.submission, event.slot) for event in events if isinstance(event, Admitted)]


def tokens(events: list[Event]) -> dict[int, tuple[int, ...]]:
    """The tokens streamed, by submission."""
    return {who: tuple(event.token for event in some) for who, some in emitted_by_submission(tuple(events)).items()}


def logits(events: list[Event], submission: int) -> torch.Tensor:
    """The logits [n, V] of a submission's tokens."""
    shown = [event.logits for event in events if isinstance(event, Emitted) and event.submission == submission]
    return torch.stack([row for row in shown if row is not None])


def cached(events: list[Event]) -> dict[int, int]:
    """How many cells were there already when each submission was admitted, the last time."""
    return {event.submission: event.cached for event in events if isinstance(event, Admitted)}


def alone(factory: DecoderFactory, asked: Request) -> torch.Tensor:
    """The logits [n, V] of a greedy answer by the network itself, without any cache; forced tokens are followed."""
    network, ids, rows = factory.module({}), list(asked.prompt), []
    with torch.inference_mode():
        for count in range(asked.max_new_tokens):
            rows.append(network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1])
            ids.append(asked.forced[count] if count < len(asked.forced) else int(rows[-1].argmax()))
    return torch.stack(rows)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two answers' logits in float64 are the same but for rounding."""
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) < 1e-9


def assert_all_given_back(decoder: Decoder) -> None:
    """Raises where something is held, queued, in flight or lost: a fresh decoder but for cells that are kept for hits."""
    audit = decoder.audit()
    assert (audit.held, audit.queued, audit.retiring) == ((), (), ())
    assert sorted(audit.free) == list(range(audit.slots)), "each slot is free once"
    if audit.pages is not None:
        assert audit.pages.references == ()
        assert sorted((*audit.pages.free, *audit.pages.cached)) == list(range(audit.pages.total)), "each page is there once"
    assert not any(decoder.store.lengths)
    assert (decoder.live, list(decoder.launched), decoder.batch.submissions, decoder.sampler.rows) == ({}, [], [], [])


def reasons(events: list[Event]) -> dict[int, Reason]:
    """Why each submission ended."""
    return {event.submission: event.reason for event in events if isinstance(event, Finished)}
