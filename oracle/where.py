"""Where it began: the first thing about a request's attention that departs from its reference, and a name for the cause.

The victim's rows, as they were recorded, are held against one cacheless forward of the same tokens, recorded the same way.
First what the target says of the row (its slot, its tokens, how many cells stood before them), then layer by layer: the
query, which cells are visible, K, V, logits before the softmax, weights, output; last, the logits that were streamed. The
*site* is the cause in a few words, without layer, head, position or submission: the same bug has the same site whatever
the schedule, so that failures can be told apart by it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from oracle.attention import Attention
from oracle.finding import Finding
from targets.protocol import Admitted, Audited, Emitted, Finished, Kind, Preempted, Refused, Trace

RELATIVE = 1e-9
"""Of a tensor's largest value: what may differ in float64, where clean runs differ by some 1e-15."""
RELATIVE_MAX = 0.25


class Part(enum.StrEnum):
    """What departs, in the order in which it is looked at."""

    ROW = "row"
    INPUT = "input"
    LENGTH = "length"
    QUERY = "Q"
    MASK = "mask"
    KEYS = "K"
    VALUES = "V"
    LOGITS = "logits"
    WEIGHTS = "weights"
    OUTPUT = "output"
    RESULT = "result"
    ACCOUNT = "account"


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a failure began.

    Attributes:
        site: The cause by name, for signatures.
        what: The same for people, with its place.
        step: Of the replay; None where no step is concerned.
        token: Index into the victim's answer of the token that was being computed.
        position: Of the query among the victim's tokens, prompt included.
        head: Of the queries for Q, mask, logits, weights and output, of the keys for K and V.
        cell: Position of the cell that departs.
        expected, actual: The two numbers there.
        owner: The submission whose content stands there, where it is known.
        shared: Whether two requests that run together share cells on a fresh target; None where that can't be tried.
    """

    site: str
    part: Part
    what: str
    submission: int | None = None
    step: int | None = None
    token: int | None = None
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    cell: int | None = None
    expected: float | None = None
    actual: float | None = None
    owner: int | None = None
    shared: bool | None = None


@dataclass(frozen=True)
class Departure:
    """The first number of one row that departs; fields as in `Where`. `cause` is the site without what is shared."""

    part: Part
    cause: str
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    cell: int | None = None
    expected: float | None = None
    actual: float | None = None
    owner: int | None = None


@dataclass(frozen=True)
class Expected:
    """What the reference recorded: each request's layers over its whole sequence.

    Attributes:
        own: The victim's.
        others: The other requests', by submission; only looked at to say whose a wrong cell is.
        relative: Of a tensor's largest value, what may differ.
        states: Whether some layers keep a recurrent state, which no attention shows.
    """

    own: Sequence[Attention]
    others: Mapping[int, Sequence[Attention]]
    relative: float = RELATIVE
    states: bool = False


def tolerance(bound: float) -> float:
    """The relative difference that rounding may make, from the reference's bound on logits (whose scale is about 1)."""
    return min(max(RELATIVE, bound), RELATIVE_MAX)


def departure(expected: Expected, ours: Sequence[Attention], first: int, count: int, told: bool) -> Departure | None:
    """The first number that departs in the attention of one row.

    Args:
        ours: The victim's row, layer by layer.
        first: The position of its first query.
        count: Its queries.
        told: Whether the target says which tokens the row had, and they are the right ones.
    """
    for layer, (reference, row) in enumerate(zip(expected.own, ours, strict=True)):
        wanted = reference.stretch(first, count)
        seen = _in_order(wanted, row, first + count, expected.relative)
        found = _query(expected, wanted, seen, layer, told) or _mask(wanted, seen, first)
        found = found or _cells(expected, wanted, seen, layer) or _results(wanted, seen, expected.relative)
        if found is not None:
            position = None if found.position is None else found.position + first
            return Departure(**{**vars(found), "layer": layer, "position": position})
    return None


def _query(expected: Expected, wanted: Attention, seen: Attention, layer: int, told: bool) -> Departure | None:
    at = first_difference(wanted.queries, seen.queries, expected.relative)
    if at is None:
        return None
    (_, head, query, _), number, actual = at
    cause = "query: position" if told else "query: token or position"
    if expected.states:
        cause += ", or a recurrent state before it"
    if layer > 0:
        cause = "query: what happens between two layers"
    return Departure(Part.QUERY, cause, head=head, position=query, expected=number, actual=actual)


def _in_order(wanted: Attention, seen: Attention, own: int, relative: float) -> Attention:
    """A row that has fewer cells than tokens, with its cells in the order of their positions.

    Where old cells were dropped, the others may have moved up, or stand in a ring, position p of T cells in cell p % T:
    whichever agrees with the reference in more cells. (Attention does not depend on the order.)
    """
    cells = seen.visible.shape[3]
    if cells >= own or wanted.keys is None or seen.keys is None:
        return seen
    groups = min(wanted.keys.shape[1], seen.keys.shape[1])
    last = _heads(wanted.keys, groups)[:, :, own - cells : own]

    def alike(keys: torch.Tensor) -> int:
        close = (_heads(keys, groups) - last).abs() <= relative * last.abs().max()
        return int(close.all(dim=-1).all(dim=1).sum())

    def turned(whole: torch.Tensor | None, dim: int) -> torch.Tensor | None:
        return None if whole is None else whole.roll(-(own % cells), dim)

    if last.shape[2] != cells or alike(seen.keys) >= alike(seen.keys.roll(-(own % cells), 2)):
        return seen
    return replace(
        seen,
        keys=turned(seen.keys, 2),
        values=turned(seen.values, 2),
        visible=seen.visible.roll(-(own % cells), 3),
        bias=turned(seen.bias, 3),
        shown_logits=turned(seen.shown_logits, 3),
        shown_weights=turned(seen.shown_weights, 3),
    )


def _mask(wanted: Attention, seen: Attention, first: int) -> Departure | None:
    """The cells that are visible against those that should be. Where old cells were dropped, only their number counts."""
    own = first + wanted.visible.shape[2]
    cells = seen.visible.shape[3]
    ours, theirs = wanted.visible[0], seen.visible[0]
    if cells < own:
        extra, missing = _counted(ours, theirs)
    else:
        ours = torch.nn.functional.pad(ours[:, :, :own], (0, cells - own))
        extra, missing = theirs & ~ours, ours & ~theirs
    if bool(extra.any()):
        head, query, cell = extra.nonzero()[0].tolist()
        foreign = bool(extra[:, :, own:].any())
        cause = "mask: cells that are not its own" if foreign else "mask: own cells that it should not see"
        return Departure(
            Part.MASK, cause, head=head, position=query, cell=None if cells < own else cell, expected=0, actual=1
        )
    if bool(missing.any()):
        head, query, cell = missing.nonzero()[0].tolist()
        at = None if cells < own else cell
        return Departure(Part.MASK, "mask: own cells missing", head=head, position=query, cell=at, expected=1, actual=0)
    return None


def _counted(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wanted, seen = ours.sum(-1, keepdim=True), theirs.sum(-1, keepdim=True)
    return seen > wanted, seen < wanted


def _cells(expected: Expected, wanted: Attention, seen: Attention, layer: int) -> Departure | None:
    """K, then V, of the cells that any of the queries sees."""
    ours = wanted.visible[0].any(dim=0).any(dim=0).nonzero()[:, 0]
    theirs = seen.visible[0].any(dim=0).any(dim=0).nonzero()[:, 0]
    for part, reference, actual in ((Part.KEYS, wanted.keys, seen.keys), (Part.VALUES, wanted.values, seen.values)):
        if reference is None or actual is None:
            continue
        groups = min(reference.shape[1], actual.shape[1])
        reference, actual = _heads(reference, groups), _heads(actual, groups)
        at = first_difference(reference[:, :, ours], actual[:, :, theirs], expected.relative)
        if at is not None:
            (_, head, index, _), number, other = at
            cell = int(ours[index])
            whose, owner = _whose(expected, part, actual[0, head, theirs[index]], layer, head, cell)
            return Departure(
                part, f"K,V: its cells hold {whose}", head=head, cell=cell, expected=number, actual=other, owner=owner
            )
    return None


def _results(wanted: Attention, seen: Attention, relative: float) -> Departure | None:
    """Logits, weights, output: what comes of the same queries and cells."""
    if wanted.visible.sum() == seen.visible.sum() and wanted.logits is not None and seen.logits is not None:
        ours, theirs = wanted.visible, seen.visible
        for part, cause, before, after in (
            (Part.LOGITS, "logits: their scale or bias", wanted.logits, seen.logits),
            (Part.WEIGHTS, "weights: the softmax", wanted.weights, seen.weights),
        ):
            assert before is not None, "logits and weights are known together"
            assert after is not None, "logits and weights are known together"
            at = first_difference(before[ours], after[theirs], relative)
            if at is not None:
                _, head, query, cell = ours.nonzero()[at[0][0]].tolist()
                return Departure(part, cause, head=head, position=query, cell=cell, expected=at[1], actual=at[2])
    at = first_difference(wanted.output, seen.output, relative)
    if at is None:
        return None
    (_, head, query, _), expected, actual = at
    return Departure(Part.OUTPUT, "output: the sum over V", head=head, position=query, expected=expected, actual=actual)


def _heads(cells: torch.Tensor, groups: int) -> torch.Tensor:
    """One of each group of heads that were repeated for their queries: [B, G, T, D]."""
    return cells[:, :: cells.shape[1] // groups]


def _whose(
    expected: Expected, part: Part, content: torch.Tensor, layer: int, head: int, cell: int
) -> tuple[str, int | None]:
    """Whose content stands in a cell, [D], that should be the victim's own: in words, and the submission."""
    if bool((content == content[0]).all()):
        return "nothing that was ever written", None
    for place, number in _matches(expected.own, part, content, expected.relative):
        if place == layer and number[0] != head and number[1] == cell:
            return "those of another head", None
    for place, number in _matches(expected.own, part, content, expected.relative):
        if place != layer and number == (head, cell):
            return "those of another layer", None
    for submission, layers in expected.others.items():
        if any(place == layer for place, _ in _matches(layers, part, content, expected.relative)):
            return "another request's", submission
    if any(place == layer for place, _ in _matches(expected.own, part, content, expected.relative)):
        return "its own of another position", None
    return "what the reference computes for nobody", None


def _matches(
    layers: Sequence[Attention], part: Part, content: torch.Tensor, relative: float
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Where the reference has this very content: (layer, (head, position)) each."""
    for layer, attention in enumerate(layers):
        cells = attention.keys if part is Part.KEYS else attention.values
        if cells is not None and cells.shape[-1] == len(content):
            close = ((cells[0] - content).abs() <= relative * cells.abs().max()).all(dim=-1)
            for head, position in close.nonzero().tolist():
                yield layer, (head, position)


def first_difference(
    expected: torch.Tensor | None, actual: torch.Tensor | None, relative: float
) -> tuple[list[int], float, float] | None:
    """The first place where two tensors depart, and the two numbers there; None where they agree or one is not known."""
    if expected is None or actual is None or expected.numel() == 0 == actual.numel():
        return None
    if expected.shape != actual.shape:
        return [0] * expected.dim(), float("nan"), float("nan")
    expected, actual = expected.double(), actual.to(expected.device).double()
    apart = ~((expected - actual).abs() <= relative * expected.abs().max())
    if not bool(apart.any()):
        return None
    place = apart.nonzero()[0].tolist()
    return place, float(expected[tuple(place)]), float(actual[tuple(place)])


def account_site(finding: Finding, trace: Trace) -> str:
    """A site for what shows in no attention (a slot, a stream, a crash, a stall): the complaint, less its numbers."""
    if finding.kind is Kind.STALLED and finding.submission is not None:
        return f"stalled: {_stall(finding.submission, trace)}"
    said = re.sub(r"\[[^\]]*\]|\([^)]*\)|\b[0-9a-f]{12,}\b", "…", finding.what)  # lists, asides, digests
    said = re.sub(r"#?-?\d+(\.\d+)?", "…", said)
    said = re.sub(r"…(,? ?…)+", "…", said)
    prefix = {Kind.CRASHED: "raised", Kind.OWNERSHIP: "slots"}.get(finding.kind, "stream")
    return f"{prefix}: {said}"


def _stall(victim: int, trace: Trace) -> str:
    """What a request that never ends is waiting for, as far as the trace and the last account tell."""
    ended = {event.submission for event in trace if isinstance(event, Finished | Refused)}
    moves = [event for event in trace if isinstance(event, Admitted | Preempted) and event.submission == victim]
    if moves and isinstance(moves[-1], Preempted):
        return "is preempted and never admitted again"
    if any(isinstance(event, Emitted) and event.submission == victim for event in trace):
        return "gets tokens and does not end"
    if any(isinstance(event, Admitted) and event.submission == victim for event in trace):
        return "is admitted and gets no token"
    audits = [event.audit for event in trace if isinstance(event, Audited)]
    if not audits:
        return "is never admitted"
    pages = audits[-1].pages
    if audits[-1].free and pages is not None and not (pages.free or pages.cached):
        return "is never admitted: slots are free, and no page is"
    if audits[-1].free:
        return "is never admitted though slots are free"
    if all(ended.issuperset(holding.owners) for holding in audits[-1].held):
        return "is never admitted: ended requests hold every slot"
    return "is never admitted: every slot is held"
