"""The wire: whatever goes over it arrives bit for bit, in whatever pieces, and what is no data is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from fuzz.wire import FRAME_BYTES_MAX, Calling, Said, decode_from_worker, encode, take_frame
from targets.protocol import (
    Admitted,
    Asked,
    Attended,
    Audit,
    Audited,
    Counted,
    Crashed,
    Drafted,
    Emitted,
    Event,
    Finished,
    Freed,
    Holding,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Stalled,
    Stepped,
    digest,
    first_departure,
)

EVENTS: list[Event] = [
    Asked(0),
    Stepped(3),
    Admitted(1, 0, cached=2),
    Counted({"page_reuse": 3}),
    Prefilled(1, 3),
    Preempted(1, 0),
    Drafted(1, 2),
    Emitted(1, 7),
    Finished(1, Reason.STOP, (7, 8)),
    Refused(2, "too long"),
    Freed(1, 0),
    Audited(Audit(held=(Holding(0, (1,), 2, 2),), free=(1,), queued=(2,), slots=2)),
    Crashed("step", "was killed by SIGABRT", (1, 2), fatal=True),
    Crashed("submit", "E: e", (1,)),
    Stalled((1,), 4),
    Stalled((1,), 0, "step"),
]


def carried(events: list[Event]) -> list[Event]:
    """The same events at the other end."""
    body = take_frame(bytearray(encode(Said(events))))
    assert body is not None
    said = decode_from_worker(body)
    assert isinstance(said, Said)
    return said.events


def test_every_event_there_is_arrives_as_it_was() -> None:
    assert {type(event) for event in EVENTS} | {Attended} == set(get_args(Event))  # whose tensors have a test of their own
    there = carried(EVENTS)
    assert first_departure(tuple(EVENTS), tuple(there)) is None
    assert digest(tuple(EVENTS)) == digest(tuple(there))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_logits_arrive_with_every_bit_of_every_dtype(dtype: torch.dtype) -> None:
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    # Random bits: NaN of all kinds, infinities, zeros of both signs, numbers too small to be normal.
    row = torch.randint(-(2**15), 2**15, (4096,), generator=torch.Generator().manual_seed(0)).to(width).view(dtype)
    (there,) = carried([Emitted(0, 1, row)])
    assert isinstance(there, Emitted)
    assert there.logits is not None
    assert there.logits.dtype == dtype
    assert torch.equal(there.logits.view(width), row.view(width))


@pytest.mark.parametrize(
    "logits", [torch.zeros(0), torch.zeros(()), torch.arange(6.0).view(2, 3).t(), torch.ones(3, requires_grad=True)]
)
def test_logits_of_any_shape_and_layout_arrive_with_that_shape(logits: torch.Tensor) -> None:
    (there,) = carried([Emitted(0, 1, logits)])
    assert isinstance(there, Emitted)
    assert there.logits is not None
    assert there.logits.shape == logits.shape
    assert torch.equal(there.logits, logits.detach())


@pytest.mark.parametrize(
    "token", [object(), {1: "a"}.keys(), 2**70, torch.tensor([1.5, 2.5])], ids=lambda token: type(token).__name__
)
def test_what_is_no_data_is_refused_at_one_end_or_the_other(token: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        carried([Emitted(0, token)])


def test_frames_come_in_any_pieces() -> None:
    whole = encode(Said([Asked(0)])) + encode(Said([], Calling("step", (0,), (0, 1))))
    buffer, bodies = bytearray(), []
    for byte in whole:
        buffer.append(byte)
        if (body := take_frame(buffer)) is not None:
            bodies.append(decode_from_worker(body))
    assert bodies == [Said([Asked(0)]), Said([], Calling("step", (0,), (0, 1)))]
    assert not buffer


def test_a_length_beyond_reason_is_no_frame() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        take_frame(bytearray((FRAME_BYTES_MAX + 1).to_bytes(8, "little")))
