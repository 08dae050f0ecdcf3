"""The knobs of the built-in targets: those that all decoders have, and those of each kind of store."""

from __future__ import annotations

from collections.abc import Callable

import torch

from targets.decoder.store import POISONS
from targets.models import DTYPES, Plan
from targets.protocol import Knob

CONTEXT_TOKENS_MAX = 256
CONTEXT_TOKENS_LONG = 1280


def knobs_of(plan: Plan, target: str) -> tuple[Knob, ...]:
    """The knobs of a built-in target over a network with this plan."""
    return (
        *_admission(plan),
        *(_BATCHES if target == "static" else (_ADMIT_MAX, *_steps(plan, target))),
        *_STORES[target](plan),
        *_cells(plan),
        *_undrawn(),
        *(() if target in ("static", "packed") else _trust(plan)),
    )


def _admission(plan: Plan) -> tuple[Knob, ...]:
    positions = plan.positions_max
    # Where every answer encodes the whole item anew, long ones are for whoever asks for them.
    long = () if plan.family == "encoder" else (CONTEXT_TOKENS_LONG,)
    contexts = tuple(min(size, positions) for size in (CONTEXT_TOKENS_MAX, 16, 32, 64, *long))
    return (
        Knob(name="slots", default=4, values=(4, 1, 2, 3, 8), low=1, high=1024, doc="requests that have state at once"),
        Knob(name="slot_order", default="lifo", values=("lifo", "fifo"), doc="which free slot is taken next"),
        Knob(
            name="context_tokens_max",
            default=contexts[0],
            values=contexts,
            low=2,
            high=positions,
            may_change_outputs=True,
            unit="tokens",
            doc="prompt and answer together",
        ),
        Knob(
            name="queue_max",
            default=64,
            values=(64, 1, 2),
            low=0,
            high=1_000_000,
            may_change_outputs=True,
            unit="requests",
            doc="more are refused",
        ),
    )


_ADMIT_MAX = Knob(name="admit_max", default=8, values=(8, 1, 2), low=1, high=1024, unit="requests a step", doc="admissions")


_BATCHES = (
    Knob(
        name="padding_side",
        default="left",
        values=("left", "right"),
        doc="where the prompts of a batch are filled up to one width",
    ),
    Knob(
        name="bucket_tokens",
        default=0,
        values=(0, 4, 8, 16),
        low=0,
        high=1_000_000,
        unit="tokens",
        doc="prompts of one bucket share a batch, filled up to its end; 0: any do, filled up to the longest",
    ),
    Knob(
        name="gather_steps",
        default=1,
        values=(1, 0, 2),
        low=0,
        high=3,
        unit="steps",
        doc="that a batch waits for more requests than there are, while it has fewer than slots",
    ),
)


def _steps(plan: Plan, target: str) -> tuple[Knob, ...]:
    by_row = target == "threads"  # each row has a forward of its own
    fills = not by_row and target != "packed"  # batches up
    guesses = plan.family == "causal" and not plan.recurrent and target != "packed"  # a state does not go back
    prefills = ("alone",) if plan.prompts_alone or by_row else ("mixed", "apart", "alone")
    return (
        Knob(name="prefill", default=prefills[0], values=prefills, doc="which rows share a forward"),
        Knob(
            name="step_tokens_max",
            default=0,
            values=(0, 4, 8, 16, 64),
            low=0,
            high=1_000_000,
            unit="tokens a step",
            doc="decodes first, then prompts in chunks; 0 for no limit",
        ),
        Knob(name="pipelined", default=False, values=(False, True), doc="results are applied one step after the launch"),
        *([_SPECULATE] if guesses else []),
        *([_PAD_BATCH] if plan.family in ("causal", "encoder") and fills else []),  # who is nobody has no source
    )


_SPECULATE = Knob(
    name="speculate",
    default=0,
    values=(0, 1, 2, 4),
    low=0,
    high=1024,
    unit="tokens",
    doc="guessed from the request's own text and verified in one forward, at most; it rests where pipelined",
)


_PAD_BATCH = Knob(
    name="pad_batch",
    default=False,
    values=(False, True),
    doc="forwards are filled up to 1, 2, 4, 8, ... rows, as captured graphs need",
)


_REUSE = Knob(
    name="reuse",
    default="length",
    values=("length", "zero-on-free", "zero-on-allocate"),
    doc="what becomes of cells that change hands; length: nothing, the length says what counts",
)


def _slots(plan: Plan) -> tuple[Knob, ...]:
    windows = (
        Knob(
            name="window",
            default="mask",
            values=("mask", "ring"),
            doc="what a windowed layer keeps: all cells, and the mask knows, or a ring of those it may see",
        ),
        Knob(
            name="ring_append_max",
            default=16,
            values=(16, 1, 4),
            low=1,
            high=1024,
            unit="tokens",
            doc="as many a forward adds to a row of a ring; longer prompts go in chunks",
        ),
    )
    return (_REUSE, *(windows if any(layer.window for layer in plan.layers) else ()))


def _pages(plan: Plan) -> tuple[Knob, ...]:
    return (
        _REUSE,
        Knob(name="page_size", default=16, values=(16, 1, 4, 8, 32), low=1, high=1024, unit="cells", doc="of a page"),
        Knob(
            name="pool_tokens",
            default=1024,
            values=(1024, 160, 224, 512),
            low=1,
            high=100_000_000,
            may_change_outputs=True,
            unit="cells",
            doc="of all pages together; a request that comes to more is refused",
        ),
        Knob(name="page_order", default="lifo", values=("lifo", "fifo"), doc="which free page is taken next"),
        Knob(
            name="prefix_cache",
            default=True,
            values=(True, False),
            doc="pages are kept for requests that begin alike",
        ),
        Knob(
            name="references",
            default="each",
            values=("each", "grouped"),
            doc="pages are given back at once, or all together when a step is over",
        ),
        Knob(
            name="preempt",
            default="recompute",
            values=("recompute", "move"),
            doc="what becomes of the cells of a request that makes room: dropped, or moved to host memory and back",
        ),
    )


def _private(plan: Plan) -> tuple[Knob, ...]:
    return (
        Knob(
            name="growth",
            default="buffer",
            values=("buffer", "cat"),
            doc="a cache grows into room that doubles, or by concatenation, a token at a time",
        ),
    )


def _threads(plan: Plan) -> tuple[Knob, ...]:
    return (
        *_private(plan),
        Knob(name="lock", default=False, values=(False, True), doc="a thread keeps its turn to the end of its forward"),
        Knob(
            name="turns",
            default=0,
            values=(0, 1, 2, 3),
            low=0,
            high=1_000_000,
            doc="which thread goes on at a hand-over: 0 for the next one, round and round, else drawn from that seed",
        ),
    )


def _items(plan: Plan) -> tuple[Knob, ...]:
    return (_REUSE,)


def _sources(plan: Plan) -> tuple[Knob, ...]:
    return (
        _REUSE,
        Knob(
            name="unused_max",
            default=4,
            values=(4, 0, 1),
            low=0,
            high=1_000_000,
            unit="sources",
            doc="encoded ones that nobody uses any more are kept for those who bring the same",
        ),
    )


_STORES: dict[str, Callable[[Plan], tuple[Knob, ...]]] = {
    "slots": _slots,
    "pages": _pages,
    "private": _private,
    "threads": _threads,
    "static": lambda plan: (_REUSE,),
    "packed": lambda plan: (_REUSE,),
    "encoder": _items,
    "seq2seq": _sources,
    "pictures": _sources,
}
"""By target, what only its store has."""


def _trust(plan: Plan) -> tuple[Knob, ...]:
    if plan.masks not in ("tensor", "by-type") or plan.family != "causal":
        return ()  # a mask of columns is not added to logits, and a recurrent state has none
    return (
        Knob(
            name="trust_bias",
            default=0,
            values=(0, 1, 2, 4, 8),
            low=0,
            high=64,
            may_change_outputs=True,
            drawn=False,
            unit="nats",
            doc="experimental: taken from the logits of tokens that a request calls untrusted; 0: the label means nothing",
        ),
    )


def _cells(plan: Plan) -> tuple[Knob, ...]:
    if plan.family == "encoder":
        return ()  # what it keeps are token ids
    return (
        Knob(
            name="kv_dtype",
            default="same",
            values=("same", *DTYPES),
            may_change_outputs=True,
            drawn=False,
            doc="of K and V, where it is not that of the arithmetic",
        ),
    )


def _undrawn() -> tuple[Knob, ...]:
    return (
        Knob(
            name="dtype",
            default="float64",
            values=tuple(DTYPES),
            may_change_outputs=True,
            drawn=False,
            doc="of the arithmetic, and of K and V unless kv_dtype says otherwise",
        ),
        Knob(
            name="weights",
            default="same",
            values=("same", *DTYPES),
            may_change_outputs=True,
            drawn=False,
            doc="the dtype weights are rounded to before they are upcast",
        ),
        Knob(
            name="linear",
            default="auto",
            values=("auto", "plain", "packed"),
            may_change_outputs=True,
            drawn=False,
            doc="weights of linear layers: plain, or in blocks that a CPU's kernels read; auto: packed for larger models",
        ),
        Knob(
            name="device",
            default="cpu",
            values=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
            may_change_outputs=True,
            drawn=False,
            doc="where; cuda only on a machine that has it",
        ),
        Knob(
            name="sanitize",
            default=False,
            values=(False, True),
            drawn=False,
            doc="report who wrote every cell that a request attends to, and in what memory it lies",
        ),
        Knob(
            name="poison",
            default="none",
            values=("none", *POISONS),
            drawn=False,
            doc="what cells hold that are free, and padding; none leaves them as they are",
        ),
    )
