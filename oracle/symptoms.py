"""Symptoms: a table from what people see to what it usually is, the experiment that decides, and the fix.

The rows are those that debugging guides give for KV caches that mix requests up, and a few more. `match` picks the row that
the evidence of a finding fits: the first one whose condition holds, so that the same evidence always gives the same row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from oracle.finding import Finding
from oracle.where import Part, Where
from targets.protocol import CheckName, Kind

_SHAPES = re.compile(r"\b(sizes?|shapes?|dimensions?|broadcast\w*)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Clues:
    """What is known of a failure; None where it was not tried or could not be.

    Attributes:
        where: Where it began.
        past: Whether every request that the victim depends on had ended before the victim began.
        serialised_gone: Whether it is gone when each step advances one request only.
        equal_lengths_gone: Whether it is gone when all prompts are cut to the length of the shortest.
    """

    finding: Finding
    where: Where | None = None
    past: bool | None = None
    serialised_gone: bool | None = None
    equal_lengths_gone: bool | None = None

    @property
    def kind(self) -> Kind:
        """The finding's."""
        return self.finding.kind

    @property
    def part(self) -> Part | None:
        """The part that departs first."""
        return None if self.where is None else self.where.part

    @property
    def site(self) -> str:
        """The cause by name; empty where it is not known."""
        return "" if self.where is None else self.where.site

    @property
    def shared(self) -> bool:
        """Whether requests are known to share cells."""
        return self.where is not None and bool(self.where.shared)


@dataclass(frozen=True)
class Symptom:
    """A row of the table. `fits` says whether the evidence matches."""

    name: str
    symptom: str
    cause: str
    experiment: str
    fix: str
    fits: Callable[[Clues], bool]


def match(clues: Clues) -> Symptom | None:
    """The row that the evidence fits; None where there is none."""
    return next((row for row in SYMPTOMS if row.fits(clues)), None)


SYMPTOMS = (
    Symptom(
        name="dimension error",
        symptom="a step raises: sizes or shapes do not match",
        cause="the rows' caches are put together unaligned, each as long as it is",
        experiment="cut all prompts to one length: if it is gone, the lengths were not aligned",
        fix="pad every row's cells to the longest before they are put together, and hide the padding in the mask",
        fits=lambda clues: clues.kind is Kind.CRASHED and bool(_SHAPES.search(clues.finding.what)),
    ),
    Symptom(
        name="low throughput",
        symptom="requests wait though there is room; a long prompt beside short ones most of all",
        cause="padding is counted as work: rows times the longest, rather than the tokens there are",
        experiment="count the padding share; cut all prompts to one length: if they are served now, it was the padding",
        fix="admit by real tokens; put requests of like length together, or do not pad",
        fits=lambda clues: clues.kind is Kind.STALLED and bool(clues.equal_lengths_gone),
    ),
    Symptom(
        name="memory held after exit",
        symptom="a request has ended and its memory is still held; in the end nothing can be admitted",
        cause="a slot is not returned on some way out: cancel, deadline, error",
        experiment="account for every slot after each step: one whose owner is not running",
        fix="give a slot back in one place that every way out passes, and have it checked there",
        fits=lambda clues: (
            (clues.kind is Kind.OWNERSHIP and bool(re.search(r"is not running|and … free, of", clues.site)))
            or (clues.kind is Kind.STALLED and "ended requests hold" in clues.site)
        ),
    ),
    Symptom(
        name="request waits for ever",
        symptom="a request is never served, though others are and slots are free",
        cause="the queue forgets it: passed over once, or lost on a way back",
        experiment="account for the queue after each step: a request that waits and is not looked at",
        fix="look at every waiting request in every step, the oldest first",
        fits=lambda clues: clues.kind is Kind.STALLED,
    ),
    Symptom(
        name="slot handed out twice",
        symptom="two requests answer with pieces of each other after a cancel",
        cause="a slot is freed twice, and then given to two requests",
        experiment="look for a slot that is free twice, or held and free",
        fix="free by owner: only who holds a slot can give it back, and once",
        fits=lambda clues: (
            clues.site == "row: its slot is another live request's as well"
            or (clues.kind is Kind.OWNERSHIP and bool(re.search(r"is free twice|owners", clues.site)))
        ),
    ),
    Symptom(
        name="output crossed",
        symptom="an answer has pieces of another request's, lacks a piece, or goes on as another one would",
        cause="a result, a token or a row's state is overwritten or spliced into the wrong request",
        experiment="compare Q, K, V: they agree up to the row, and what went in or came out is another request's",
        fix="match results and state by request, not by row or by the client's id; copy a row before it is overwritten",
        fits=lambda clues: (
            clues.part in (Part.RESULT, Part.INPUT, Part.ROW)
            or clues.kind is Kind.BOOKKEEPING
            or (clues.kind is Kind.OWNERSHIP and bool(re.search(r"held and free|but holds|was given", clues.site)))
        ),
    ),
    Symptom(
        name="parameters crossed",
        symptom="an answer obeys what another request asked (its bias, its ids, its seed), or not all that its own did",
        cause="what sampling needs is kept by row, or decided for the whole batch, and does not follow its request",
        experiment="choose again from the request's own logits: by its own parameters, then by each neighbour's",
        fix="move all of a row's state with its request, clear what it left, and decide each stage row by row",
        fits=lambda clues: clues.kind is Kind.ECHO,
    ),
    Symptom(
        name="odd attention",
        symptom="a request attends to what is not its own, and differently beside longer ones",
        cause="the mask hides the padding of the input but not that of the cache",
        experiment="cut all prompts to one length: if it is gone, padding or cells behind a row's end were seen",
        fix="build the mask from each row's own length, as wide as cache and new tokens together",
        fits=lambda clues: (
            clues.site.startswith(("mask: cells that", "mask: own cells that"))
            or (clues.part is Part.LENGTH and clues.kind is Kind.INTERFERENCE)
            or (clues.kind is Kind.OWNERSHIP and "cells" in clues.site and bool(clues.equal_lengths_gone))
        ),
    ),
    Symptom(
        name="long sequences degrade",
        symptom="short answers are right, long ones turn to nonsense",
        cause="the mask covers only part of the cache, or was made for a fixed length",
        experiment="the request alone at growing lengths: the first length at which a cell of its own is hidden",
        fix="build the mask for cache and new tokens together, each time anew",
        fits=lambda clues: clues.site.startswith("mask: own cells missing"),
    ),
    Symptom(
        name="memory grows",
        symptom="a request has more cells than tokens, and memory grows from request to request",
        cause="a cache is not freed or not reset: old cells are kept, or a view holds them",
        experiment="print the length each step: it should be the tokens run, and start at 0 for a new request",
        fix="reset the length when a slot changes hands; let nothing else hold the cache",
        fits=lambda clues: clues.kind is Kind.OWNERSHIP and "cells" in clues.site,
    ),
    Symptom(
        name="rows disturb each other",
        symptom="a request's answer changes with what its neighbours ask",
        cause="requests share a cache: one for all, a global, or a view where a copy was meant",
        experiment="view or copy: two requests' cells have one address, or one content where their tokens differ",
        fix="a cache for each request (clone or repeat, not expand), passed in and out, never kept in the module",
        fits=lambda clues: clues.kind is Kind.LEAK and clues.shared,
    ),
    Symptom(
        name="unstable results",
        symptom="answers change from run to run, or with who else is in the step; under a lock they do not",
        cause="rows or threads of one step go through one buffer",
        experiment="one request a step: what is gone then was shared within the step, what stays is shared over time",
        fix="give each row or thread a buffer of its own",
        fits=lambda clues: clues.part in (Part.KEYS, Part.VALUES) and bool(clues.serialised_gone),
    ),
    Symptom(
        name="repeated or garbled text",
        symptom="text repeats itself or is garbled, even for a request that is alone",
        cause="heads or layers share cells: views of one buffer, or an index that is off by one",
        experiment="compare each head's and each layer's cells with the reference: one holds another's",
        fix="split heads into storage of their own, and index layers once, in one place",
        fits=lambda clues: clues.site.startswith(("K,V: its cells hold those of another", "K,V: its cells hold its own")),
    ),
    Symptom(
        name="two runs differ",
        symptom="the same request gives something else the second time",
        cause="a cache is not reset, or is shared, between one request and the next",
        experiment="the same request alone, asked twice of one target: the second time it is answered otherwise",
        fix="bind the cache to the request; start each one at length 0",
        fits=lambda clues: (
            clues.kind is Kind.LEAK
            and (clues.past is True or clues.part is Part.LENGTH or clues.finding.check is CheckName.REPEAT)
        ),
    ),
    Symptom(
        name="words out of place",
        symptom="the right words in the wrong order, or a new turn that forgets the turn before",
        cause="positions start again, or are another row's",
        experiment="the token is right and the first layer's query is not: print the position ids of each step",
        fix="count positions for each request, from its own length",
        fits=lambda clues: clues.part is Part.QUERY,
    ),
)
