"""Provenance: every cell that a request attends to was written for that request, by the present owner of its storage.

Each forward's rows bring the shadow tags of the cells that they could see; the mask is the one that the network was given,
and the tags were read with the indices that read K and V. No arithmetic is involved, so a leak shows however little it
moves the logits, in any dtype, with one replay; and the tag names the source.

A request that was admitted with cells *cached* may see, among those, what was written for another: where that other has the
same tokens up to there and the same salt, which the judge sees for itself.

Only foreign, stale and unwritten cells convict: their content is somebody else's, present or past, which is what a LEAK is.
A request's own cell that is missing, doubled or at the wrong place is no leak, and which of three kinds it is depends on
whether it also happens alone. It moves the logits by far more than rounding, and isolation decides it by experiment.
"""

from __future__ import annotations

from collections.abc import Generator

import torch

from oracle.case import Case, alike
from oracle.finding import Finding, Report
from targets.protocol import Admitted, Attended, CheckName, Emitted, Kind, Schedule, Trace
from targets.protocol.tags import NEVER, OWNER_SHIFT, POSITION_MASK, POSITION_SHIFT, SUBMISSION_SHIFT, pack, unpack


def provenance(case: Case) -> Generator[Schedule, Trace, Report]:
    """LEAK at the first forward in which a row sees a cell that is not its own. Asks for no variants."""
    report = Report()
    counts: dict[int, int] = {}
    cached: dict[int, int] = {}
    for index, event in enumerate(case.trace):
        if isinstance(event, Emitted):
            counts[event.submission] = counts.get(event.submission, 0) + 1
        elif isinstance(event, Admitted):
            cached[event.submission] = event.cached
        elif isinstance(event, Attended):
            complaint = _malformed(event, len(case.requests))
            if complaint is not None:
                report.unknown.append(f"event {index}, what the rows of a forward could see, has {complaint}")
                break
            report.cells += int(event.visible.sum())
            foreign = _foreign(event)
            if any(cached.values()) and foreign.any():
                foreign &= ~_shared(case, event, foreign, cached)
            if foreign.any():
                report.findings.append(_finding(case, index, event, foreign, counts))
                break
    return report
    yield


def _foreign(event: Attended) -> torch.Tensor:
    """Bool [G, B, T]: the visible cells whose tag names another owner than the row's own."""
    owners = [pack(*row) >> OWNER_SHIFT for row in zip(event.submissions, event.generations, strict=True)]
    own = torch.tensor(owners, dtype=torch.int64, device=event.tags.device)[None, :, None]
    return event.visible & (event.tags >> OWNER_SHIFT != own)


def _shared(case: Case, event: Attended, foreign: torch.Tensor, cached: dict[int, int]) -> torch.Tensor:
    """Bool [G, B, T]: the foreign cells that a row may see: cached for it, and of the same tokens as its own."""
    positions = event.tags >> POSITION_SHIFT & POSITION_MASK
    owners = event.tags >> SUBMISSION_SHIFT
    allowed = torch.zeros_like(foreign)
    for row, who in enumerate(event.submissions):
        for owner in set(owners[:, row][foreign[:, row]].tolist()):
            same = min(cached.get(who, 0), _justified(case, who, owner))
            allowed[:, row] |= (owners[:, row] == owner) & (positions[:, row] < same) & (event.tags[:, row] > NEVER)
    return allowed & foreign


def _justified(case: Case, who: int, owner: int) -> int:
    """How many tokens, prompt and answer, two requests of one salt have in common from the first on."""
    if owner >= len(case.requests) or case.requests[owner].salt != case.requests[who].salt:
        return 0
    ours, theirs = ((*case.requests[each].prompt, *case.answers.get(each, ())) for each in (who, owner))
    return alike(ours, theirs)


def _malformed(event: Attended, requests: int) -> str | None:
    """What makes a report one that can't be read, or None: a target of anybody's may have written it."""
    numbers = (event.submissions, event.generations, event.layers)
    if not all(isinstance(row, tuple) and all(isinstance(number, int) for number in row) for row in numbers):
        return "rows or layers that are not tuples of whole numbers"
    if not (isinstance(event.tags, torch.Tensor) and isinstance(event.visible, torch.Tensor)):
        return "tags or a mask that are no tensors"
    if (event.tags.dtype, event.visible.dtype) != (torch.int64, torch.bool):
        return f"tags of {event.tags.dtype} and a mask of {event.visible.dtype}, not int64 and bool"
    rows = len(event.submissions)
    if event.tags.shape != event.visible.shape or event.tags.shape[:-1] != (len(event.layers), rows):
        shapes = f"tags of shape {list(event.tags.shape)} and a mask of shape {list(event.visible.shape)}"
        return f"{shapes} for {len(event.layers)} layers and {rows} rows"
    if len(event.generations) != rows or not all(0 <= submission < requests for submission in event.submissions):
        return f"rows {list(event.submissions)} of generations {list(event.generations)}, for {requests} requests"
    return None


def _finding(case: Case, index: int, event: Attended, foreign: torch.Tensor, counts: dict[int, int]) -> Finding:
    """The first foreign cell: of the first layer, the first row, the first cell."""
    group, row, cell = foreign.nonzero()[0].tolist()
    who, layer = event.submissions[row], event.layers[group]
    token = counts.get(who, 0)
    answer = case.answers.get(who, ())
    tag = unpack(int(event.tags[group, row, cell]))
    if tag is None:
        what, written = "a cell that nobody has written", "never written"
    else:
        whose = f"request #{tag.submission}" if tag.submission != who else "an earlier owner"
        what = f"a cell of {whose}"
        written = (
            f"last written for request #{tag.submission}, position {tag.position}, generation {tag.generation}, "
            f"{tag.how.words}"
        )
    return Finding(
        kind=Kind.LEAK,
        check=CheckName.PROVENANCE,
        what=f"request #{who} attends to {what}",
        submission=who,
        position=token,
        event=index,
        actual=answer[token] if token < len(answer) else None,
        answer=answer,
        sources=() if tag is None or tag.submission == who else (tag.submission,),
        evidence=(
            f"provenance: for token {token} of request #{who} (generation {event.generations[row]}), layer {layer} sees "
            f"cell {cell}, {written}; {int(foreign[group, row].sum())} of the {int(event.visible[group, row].sum())} cells "
            f"that it sees are not its own",
        ),
    )
