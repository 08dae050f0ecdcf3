from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from targets.decoder import Decoder
from targets.models import Model
from targets.protocol import Event, Finished, Freed, Reason, Refused
from tests.targets.decoder.driving import drain, logits, opened, request, submit, tokens

VICTIM, NEIGHBOUR = request(1, 2, 3, new=4), request(9, 8, new=12)


def played(model: Model, steps: int, slots: int) -> tuple[Decoder, list[Event]]:
    """A neighbour and a victim, and so many steps; with one slot the victim waits."""
    decoder = opened(model, slots=slots)
    events = submit(decoder, NEIGHBOUR, VICTIM)
    for _ in range(steps):
        events += decoder.step()
    return decoder, events


@pytest.mark.parametrize(
    ("steps", "slots", "said"),
    [
        pytest.param(0, 1, lambda answer: [Finished(1, Reason.CANCELLED, ())], id="queued, before any step"),
        pytest.param(2, 1, lambda answer: [Finished(1, Reason.CANCELLED, ())], id="queued behind another"),
        pytest.param(1, 2, lambda answer: [Finished(1, Reason.CANCELLED, answer[:1]), Freed(1, 1)], id="just admitted"),
        pytest.param(2, 2, lambda answer: [Finished(1, Reason.CANCELLED, answer[:2]), Freed(1, 1)], id="in the middle"),
        pytest.param(3, 2, lambda answer: [Finished(1, Reason.CANCELLED, answer[:3]), Freed(1, 1)], id="before its last"),
        pytest.param(4, 2, lambda answer: [], id="after its end"),
    ],
)
def test_a_cancel_ends_a_request_in_any_state_and_leaves_its_neighbour_alone(
    tiny: Model, steps: int, slots: int, said: Callable[[tuple[int, ...]], list[Event]]
) -> None:
    whole = opened(tiny)
    answer = tokens(submit(whole, VICTIM) + drain(whole))[0]
    alone = opened(tiny)
    expected = submit(alone, NEIGHBOUR) + drain(alone)
    decoder, events = played(tiny, steps, slots)
    assert decoder.cancel(1, Reason.CANCELLED) == said(answer)
    assert decoder.cancel(1, Reason.CANCELLED) == []
    events += drain(decoder)
    assert tokens(events)[0] == tokens(expected)[0]
    assert torch.allclose(logits(events, 0), logits(expected, 0), rtol=0, atol=1e-12)
    assert sorted(decoder.audit().free) == list(range(slots))


def test_a_cancel_names_the_reason_it_was_given(tiny: Model) -> None:
    decoder, _ = played(tiny, steps=0, slots=2)
    assert decoder.cancel(0, Reason.DEADLINE) == [Finished(0, Reason.DEADLINE, ())]


def test_nothing_happens_to_a_cancel_of_somebody_unknown_or_refused(tiny: Model) -> None:
    decoder = opened(tiny)
    assert submit(decoder, request()) == [Refused(0, "empty prompt")]
    before = decoder.audit()
    assert decoder.cancel(0, Reason.CANCELLED) == []
    assert decoder.cancel(5, Reason.CANCELLED) == []
    assert decoder.audit() == before


def test_everybody_may_be_cancelled_at_once(tiny: Model) -> None:
    decoder = opened(tiny, slots=3)
    fresh = decoder.audit()
    submit(decoder, *[request(index, new=9) for index in range(5)])
    decoder.step()
    for who in range(5):
        decoder.cancel(who, Reason.CANCELLED)
    audit = decoder.audit()
    assert (audit.held, audit.queued) == ((), ())
    assert sorted(audit.free) == sorted(fresh.free)
    assert decoder.step() == []


def test_the_slot_of_a_cancelled_request_serves_the_next_one_as_a_fresh_slot_does(tiny: Model) -> None:
    fresh = opened(tiny, slots=1)
    expected = submit(fresh, VICTIM) + drain(fresh)
    decoder = opened(tiny, slots=1)
    submit(decoder, NEIGHBOUR)
    decoder.step()
    decoder.step()
    decoder.cancel(0, Reason.CANCELLED)
    events = submit(decoder, VICTIM, start=1) + drain(decoder)
    assert torch.equal(logits(events, 1), logits(expected, 0))
