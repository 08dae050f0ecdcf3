"""Wire: what a worker and its parent say to each other, as bytes. Never pickled, never evaluated.

A frame is its length (8 bytes, little end first) and that many bytes of MessagePack. Logits go as dtype, shape, device and
raw bytes, so that they arrive as the same bits: a trace that went over the wire has the digest of one that did not.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import torch

from targets.protocol import Event, Schedule
from targets.registry import TargetSpec

FRAME_BYTES_MAX = 2**32
_LENGTH = struct.Struct("<Q")


class Build(msgspec.Struct, frozen=True, tag=True):
    """To the worker, first of all: the factory to build.

    Attributes:
        path: `sys.path` of the parent, so that both import the same code; empty for an interpreter that keeps its own.
        threads: Torch's threads in the parent: the order of a sum may depend on them.
    """

    spec: TargetSpec
    path: list[str]
    threads: int


class Play(msgspec.Struct, frozen=True, tag=True):
    """To the worker: a schedule to play on a fresh target."""

    schedule: Schedule
    audits: bool


class Calling(msgspec.Struct, frozen=True):
    """The call of the target that begins now.

    Attributes:
        concerned: For whom it is, as the `Crashed` event of this call has it.
        live: Everyone who has asked and awaits an end.
    """

    doing: str
    concerned: tuple[int, ...]
    live: tuple[int, ...]


class Said(msgspec.Struct, frozen=True, tag=True):
    """From the worker, before every call of the target and at the end: what has happened since it last said something."""

    events: list[Event]
    calling: Calling | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the worker: the factory is built."""


class Misused(msgspec.Struct, frozen=True, tag=True):
    """From the worker: a `BadInput`, by its parts."""

    name: str
    rule: str
    got: str
    where: str


ToWorker = Build | Play
FromWorker = Said | Ready | Misused


def encode(message: ToWorker | FromWorker) -> bytes:
    """A message as a frame.

    Raises:
        TypeError, ValueError, OverflowError: where an event holds what is none of its data (a target's mistake).
    """
    body = msgspec.msgpack.encode(message, enc_hook=_flat)
    return _LENGTH.pack(len(body)) + body


def decode_to_worker(body: bytes) -> ToWorker:
    """Reads the body of a frame to the worker."""
    return msgspec.msgpack.decode(body, type=ToWorker)


def decode_from_worker(body: bytes) -> FromWorker:
    """Reads the body of a frame from the worker.

    Raises:
        msgspec.MsgspecError, ValueError: where it is not one.
    """
    return msgspec.msgpack.decode(body, type=FromWorker, dec_hook=_whole)


def take_frame(buffer: bytearray) -> bytes | None:
    """Takes the first whole frame's body off a buffer; None while it is not all there.

    Raises:
        ValueError: where there is no frame.
    """
    if len(buffer) < _LENGTH.size:
        return None
    (count,) = _LENGTH.unpack_from(buffer)
    if count > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {count} bytes")
    end = _LENGTH.size + count
    if len(buffer) < end:
        return None
    body = bytes(memoryview(buffer)[_LENGTH.size : end])
    del buffer[:end]
    return body


def _flat(value: Any) -> Any:
    """A tensor as plain data, whatever its dtype; an integer of another library, or one in a tensor, as ours."""
    if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dim()):
        here = value.detach().cpu().contiguous().reshape(-1)
        raw = here.view(torch.uint8).numpy().tobytes() if here.numel() else b""
        return (str(value.dtype).removeprefix("torch."), tuple(value.shape), str(value.device), raw)
    if not hasattr(value, "__index__"):
        raise TypeError(f"'{type(value).__name__}' object cannot be said")
    return value.__index__()


def _whole(kind: type, value: Any) -> Any:
    """The tensor that `_flat` took apart, bit for bit, on its own device."""
    if kind is not torch.Tensor:
        raise ValueError(f"{kind.__name__} is not among what is sent")
    dtype, shape, device, raw = value
    # A bytearray, because torch asks for memory that may be written.
    flat = (
        torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype)) if raw else torch.empty(0, dtype=getattr(torch, dtype))
    )
    tensor = flat.reshape(shape)
    return tensor if device == "cpu" else tensor.to(device)
