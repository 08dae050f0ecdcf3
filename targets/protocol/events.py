"""Events and traces: what happened. A trace's *skeleton* is the same without tokens, logits and accounts.

The conductor writes `Asked`, `Stepped`, `Stalled` and `Crashed`; the target reports the rest, in the order in which it
did them.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator

import msgspec
import torch


class Reason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ROOM = "room"
    """The target gave up on it for lack of room, as its documentation says that it may."""


class Asked(msgspec.Struct, frozen=True, tag=True):
    """Op `op` of the schedule begins here; the drain after the last op is asked as op `len(ops)`."""

    op: int


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """A step begins; `step` counts from 0."""

    step: int


class Admitted(msgspec.Struct, frozen=True, tag=True, repr_omit_defaults=True):
    """A request was given a slot; the K and V of its first `cached` tokens were there already."""

    submission: int
    slot: int
    cached: int = 0


class Prefilled(msgspec.Struct, frozen=True, tag=True):
    """A part of a request's tokens went through the network, and it is not its next token's turn yet.

    Attributes:
        cells: As many of its tokens, from the first on, have K and V now.
    """

    submission: int
    cells: int


class Preempted(msgspec.Struct, frozen=True, tag=True):
    """A running request had to give its slot back, and waits to be admitted again."""

    submission: int
    slot: int


class Drafted(msgspec.Struct, frozen=True, tag=True):
    """So many tokens were guessed for a request, and go through the network together with its newest one.

    They make the forward wider whatever becomes of them, so traces are comparable only where they are as many.
    """

    submission: int
    tokens: int


class Emitted(msgspec.Struct, frozen=True, tag=True, eq=False):
    """A request's next token; where guessed ones came true, a step has several of one request.

    Attributes:
        logits: Those of the network, float [V], before sampling changes them, where the target shows them.
        logprobs: (id, log-probability under those logits) of the token itself, then of the likeliest ids, the likeliest
            first, where the request asked for them.
    """

    submission: int
    token: int
    logits: torch.Tensor | None = None
    logprobs: tuple[tuple[int, float], ...] = ()


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A request ended; `tokens` is the whole answer as the target holds it."""

    submission: int
    reason: Reason
    tokens: tuple[int, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request was turned away by contract, before it held anything."""

    submission: int
    why: str


class Freed(msgspec.Struct, frozen=True, tag=True):
    """A request gave its slot back."""

    submission: int
    slot: int


class Holding(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What one slot holds. `cells` are the positions written for the owner, `visible` those its next query may see.

    Attributes:
        storage: The memory of the owner's K and V, as (allocation, first byte, end byte) each: offsets into numbered
            allocations, which are the same from run to run. Memory that is shared and read only is left out. Empty where the
            target does not say.
        pages: The pages in which the cells stand, in order; empty where the target has none.
    """

    slot: int
    owners: tuple[int, ...]
    cells: int
    visible: int
    storage: tuple[tuple[int, int, int], ...] = ()
    pages: tuple[int, ...] = ()


class Pages(msgspec.Struct, frozen=True):
    """A pool of pages: each is free, cached (nobody's, and its content is kept for a hit), or referred to by so many.

    Attributes:
        size: Cells in a page.
        total: Pages, those left out that never hold anything of a request.
        references: (page, how many refer to it) of every page that is neither free nor cached.
    """

    size: int
    total: int
    free: tuple[int, ...]
    cached: tuple[int, ...]
    references: tuple[tuple[int, int], ...]


class Shelved(msgspec.Struct, frozen=True):
    """What several requests may read at once and none may write, as an encoder's output.

    Attributes:
        name: The same for as long as it is kept.
        slots: Of the requests that use it now.
        digest: Of its bits; empty while it has not been made.
    """

    name: str
    slots: tuple[int, ...]
    digest: str


class Audit(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Who owns what, at the end of a step: every held slot, the free list as it is, the queue, the number of slots.

    Attributes:
        retiring: What requests still hold that ended while a forward with them was in flight: free once it is done.
        pages: The pool, where the target has one.
        allocated: Bytes of K and V that are allocated, on whatever memory; None where the target does not say.
        counts: How often the target did what no event tells, by name, since it was opened.
        shelved: What is shared and only read.
    """

    held: tuple[Holding, ...]
    free: tuple[int, ...]
    queued: tuple[int, ...]
    slots: int
    retiring: tuple[Holding, ...] = ()
    pages: Pages | None = None
    allocated: int | None = None
    counts: dict[str, int] = {}
    shelved: tuple[Shelved, ...] = ()


class Audited(msgspec.Struct, frozen=True, tag=True):
    """The target's own account of its storage."""

    audit: Audit


class Counted(msgspec.Struct, frozen=True, tag=True):
    """How often a target that gives no account of its storage did what no event tells, by name, since it was opened."""

    counts: dict[str, int]


class Attended(msgspec.Struct, frozen=True, tag=True, eq=False):
    """What the last query of each of B rows could see in one forward, as shadow tags (`targets.protocol.tags`).

    Attributes:
        submissions: The request that each row serves.
        generations: The present generation of each row's storage.
        layers: The G layers that are shown: those that read the same cells under the same mask as one before are left out.
        tags: int64 [G, B, T], the tags of the cells that the row's attention was given.
        visible: bool [G, B, T], those of them that the mask let it see.
    """

    submissions: tuple[int, ...]
    generations: tuple[int, ...]
    layers: tuple[int, ...]
    tags: torch.Tensor
    visible: torch.Tensor


class Crashed(msgspec.Struct, frozen=True, tag=True, repr_omit_defaults=True):
    """The target raised `error` while it did `doing` for these submissions; if `fatal`, it took its process with it.

    Attributes:
        doing: The call; `answer` where it came back, and what it gave is no answer.
        at: The line of the target's own that raised; empty where it is not known. No part of what is compared.
    """

    doing: str
    error: str
    submissions: tuple[int, ...]
    fatal: bool = False
    at: str = ""


class Stalled(msgspec.Struct, frozen=True, tag=True, repr_omit_defaults=True):
    """The conductor gave up: these submissions had not ended, and nothing advanced for `steps` steps.

    Attributes:
        doing: The call that never came back, which took the process with it; empty where every call did come back.
    """

    submissions: tuple[int, ...]
    steps: int
    doing: str = ""


Event = (
    Asked
    | Stepped
    | Admitted
    | Prefilled
    | Preempted
    | Drafted
    | Emitted
    | Finished
    | Refused
    | Freed
    | Audited
    | Counted
    | Attended
    | Crashed
    | Stalled
)
Trace = tuple[Event, ...]
ACCOUNTS = (Audited, Counted, Attended)
"""What a target says of how it did it: no part of what happened."""


def skeleton(trace: Trace) -> Iterator[object]:
    """The trace without tokens, logits and accounts, event by event; two are comparable where these are equal."""
    for event in trace:
        if isinstance(event, Emitted):
            yield (event.submission,)
        elif isinstance(event, Finished):
            yield (event.submission, event.reason, len(event.tokens))
        elif not isinstance(event, ACCOUNTS):
            yield event


def same_bits(a: Emitted, b: Emitted) -> bool:
    """Whether two emissions agree in token and in every bit of their logits (NaN equals the same NaN).

    Where they show none, in every bit of the log-probabilities that they tell.
    """
    if a.token != b.token or (a.logits is None) != (b.logits is None):
        return False
    if a.logits is None or b.logits is None:
        return repr(a.logprobs) == repr(b.logprobs)
    if a.logits.dtype != b.logits.dtype or a.logits.shape != b.logits.shape:
        return False
    return bool(torch.equal(_bits(a.logits), _bits(b.logits)))


def first_departure(a: Trace, b: Trace) -> str | None:
    """Where two traces of one schedule first differ, in words; None if they are the same bit for bit."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if isinstance(left, Emitted) and isinstance(right, Emitted) and left.submission == right.submission:
            if not same_bits(left, right):
                what = "token" if left.token != right.token else "logits"
                return f"event {index}: the {what} of request #{left.submission} differ"
        elif isinstance(left, Attended) and isinstance(right, Attended):
            continue
        elif left != right:
            return f"event {index}: {describe(left)} against {describe(right)}"
    if len(a) != len(b):
        return f"event {min(len(a), len(b))}: one trace ends, the other goes on"
    return None


def describe(event: Event) -> str:
    """One event in a few words."""
    if isinstance(event, Emitted):
        return f"Emitted(#{event.submission}, {event.token})"
    if isinstance(event, Attended):
        return f"Attended({' '.join(f'#{submission}' for submission in event.submissions)})"
    return repr(event)


def emitted_by_submission(trace: Trace) -> dict[int, list[Emitted]]:
    """Each submission's emissions, in order."""
    found: dict[int, list[Emitted]] = {}
    for event in trace:
        if isinstance(event, Emitted):
            found.setdefault(event.submission, []).append(event)
    return found


def digest(trace: Trace) -> str:
    """SHA-256 over every event, every token and every bit of every logit.

    Left out are what was attended to, and the line that raised: it moves with every edit of the file.
    """
    state = hashlib.sha256()
    for event in trace:
        if isinstance(event, Emitted):
            state.update(f"Emitted {event.submission} {event.token} ".encode())
            if event.logits is not None:
                state.update(_bits(event.logits).contiguous().cpu().numpy().tobytes())
            elif event.logprobs:
                state.update(repr(event.logprobs).encode())
        elif not isinstance(event, Attended):
            state.update(repr(msgspec.structs.replace(event, at="") if isinstance(event, Crashed) else event).encode())
    return state.hexdigest()


def _bits(values: torch.Tensor) -> torch.Tensor:
    """The same memory seen as integers of the same width."""
    return values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
