from __future__ import annotations

import math

import pytest
import torch

from targets.protocol import (
    Admitted,
    Asked,
    Attended,
    Emitted,
    Event,
    Finished,
    Freed,
    Reason,
    Stepped,
    Trace,
    digest,
    emitted_by_submission,
    first_departure,
    skeleton,
)
from targets.protocol.events import describe, same_bits

LOGITS = torch.tensor([0.5, -1.25, 3.0], dtype=torch.float64)
NAN = torch.tensor([math.nan, 1.0], dtype=torch.float64)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def story(token: int = 2, logits: torch.Tensor | None = LOGITS) -> Trace:
    return (
        Asked(0),
        Stepped(0),
        Admitted(0, 3),
        Emitted(0, token, logits),
        Finished(0, Reason.LENGTH, (token,)),
        Freed(0, 3),
    )


def one_bit_off(logits: torch.Tensor) -> torch.Tensor:
    """The logits with the last bit of the first one turned."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[logits.element_size()]
    changed = logits.clone()
    changed.view(integers)[0] ^= 1
    return changed


def with_event(trace: Trace, index: int, event: Event) -> Trace:
    return (*trace[:index], event, *trace[index + 1 :])


def test_a_skeleton_has_no_tokens_and_no_logits() -> None:
    assert list(skeleton(story())) == list(skeleton(story(token=1, logits=None)))
    assert list(skeleton(story())) == [
        Asked(0),
        Stepped(0),
        Admitted(0, 3),
        (0,),
        (0, Reason.LENGTH, 1),
        Freed(0, 3),
    ]


@pytest.mark.parametrize(
    ("index", "event"),
    [
        (2, Admitted(0, 2)),
        (3, Emitted(1, 2, LOGITS)),
        (4, Finished(0, Reason.STOP, (2,))),
        (4, Finished(0, Reason.LENGTH, (2, 2))),
        (5, Freed(0, 2)),
    ],
)
def test_a_skeleton_has_everything_else(index: int, event: Event) -> None:
    assert list(skeleton(with_event(story(), index, event))) != list(skeleton(story()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bit_of_one_logit_is_seen(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    assert same_bits(Emitted(0, 2, logits), Emitted(0, 2, logits.clone()))
    assert not same_bits(Emitted(0, 2, logits), Emitted(0, 2, one_bit_off(logits)))
    assert digest(story(logits=logits)) == digest(story(logits=logits.clone()))
    assert digest(story(logits=logits)) != digest(story(logits=one_bit_off(logits)))


def test_nan_equals_itself_and_no_other_nan() -> None:
    assert same_bits(Emitted(0, 1, NAN), Emitted(0, 1, NAN.clone()))
    assert first_departure(story(logits=NAN), story(logits=NAN.clone())) is None
    assert not same_bits(Emitted(0, 1, NAN), Emitted(0, 1, one_bit_off(NAN)))


def test_zero_and_minus_zero_differ() -> None:
    assert not same_bits(Emitted(0, 0, torch.tensor([0.0])), Emitted(0, 0, torch.tensor([-0.0])))


@pytest.mark.parametrize("other", [None, LOGITS.float(), LOGITS[:2]])
def test_logits_of_another_dtype_or_shape_or_none_at_all_differ(other: torch.Tensor | None) -> None:
    assert not same_bits(Emitted(0, 2, LOGITS), Emitted(0, 2, other))


def test_logits_that_are_a_view_count_by_their_values() -> None:
    strided = torch.stack([LOGITS, -LOGITS], dim=1)[:, 0]
    assert not strided.is_contiguous()
    assert same_bits(Emitted(0, 2, strided), Emitted(0, 2, LOGITS))
    assert digest(story(logits=strided)) == digest(story())


def test_a_target_without_logits_is_compared_by_its_tokens() -> None:
    assert first_departure(story(logits=None), story(logits=None)) is None
    assert first_departure(story(logits=None), story(token=1, logits=None)) == ("event 3: the token of request #0 differ")


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (story(), None),
        (story(token=1), "event 3: the token of request #0 differ"),
        (story(logits=one_bit_off(LOGITS)), "event 3: the logits of request #0 differ"),
        (
            with_event(story(), 2, Admitted(0, 1)),
            "event 2: Admitted(submission=0, slot=3) against Admitted(submission=0, slot=1)",
        ),
        (with_event(story(), 3, Emitted(1, 2, LOGITS)), "event 3: Emitted(#0, 2) against Emitted(#1, 2)"),
        (with_event(story(), 3, Stepped(1)), "event 3: Emitted(#0, 2) against Stepped(step=1)"),
        (story()[:-1], "event 5: one trace ends, the other goes on"),
    ],
)
def test_the_first_departure_of_two_traces_is_named(other: Trace, sentence: str | None) -> None:
    assert first_departure(story(), other) == sentence


def test_a_digest_takes_in_every_event() -> None:
    traces = [story(), *(with_event(story(), index, Stepped(9)) for index in range(6)), story()[:-1], story(token=1)]
    assert len({digest(trace) for trace in traces}) == len(traces)


def test_emissions_are_kept_by_submission_in_order() -> None:
    trace = (Emitted(1, 5), Emitted(0, 6), Stepped(1), Emitted(1, 7))
    tokens = {who: [event.token for event in events] for who, events in emitted_by_submission(trace).items()}
    assert tokens == {1: [5, 7], 0: [6]}


def looked(tag: int) -> Attended:
    return Attended((0,), (1,), (0,), torch.tensor([[[tag]]]), torch.tensor([[[True]]]))


def test_what_was_attended_to_is_no_part_of_what_happened() -> None:
    one, other = ((*story()[:3], looked(tag), *story()[3:]) for tag in (1, 2))
    assert list(skeleton(one)) == list(skeleton(story()))
    assert first_departure(one, other) is None
    assert digest(one) == digest(other) == digest(story())


def test_a_report_that_only_one_trace_has_is_a_departure_and_is_told_without_its_tensors() -> None:
    assert describe(looked(1)) == "Attended(#0)"
    assert first_departure((*story()[:3], looked(1)), story()) == "event 3: Attended(#0) against Emitted(#0, 2)"
