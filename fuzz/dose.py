"""Dose and response: how small a leak each way of looking still sees, and whether it names the right source.

A share of a neighbour's V is leaked on purpose (`targets.faults.dose`), whose record says which requests were reached; that
record is the truth against which the checks are counted. The workload is fixed: the first schedules that the default
strategies draw from seed 0. With a share of 0 nothing comes across, and what is then seen is false alarm.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import torch

from fuzz.bench import WORKLOAD_SEED
from fuzz.conductor import play, run_trio
from fuzz.judge import Judge
from fuzz.strategies import Space, batches, schedules
from oracle.case import Case
from oracle.checks.swap import UNDECIDED, Change, compare, conviction
from oracle.departure import departures
from oracle.reference import Reference
from targets.decoder import DecoderFactory
from targets.faults.dose import ULP, Cell, Leaks, leaking
from targets.models import DTYPES, Model
from targets.protocol import Factory, Op, Request, Schedule, Setting, Step, Submit, Trace

SHARES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
CELL_SHARES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, ULP)
"""How far one cell is moved; the last one by a unit in the last place."""
CELL_POSITIONS = 8
"""The cell is one of the first so many, which most requests have."""
WAYS = ("tokens", "regret", "logits", "swap")
"""Ways of looking: a token is not the isolated greedy one; its regret is beyond the bound (all that can be asked without
logits); the logits are; the bits change when all others' tokens are exchanged."""

SWAP_SEES = 1e-3
"""The least share of which the swap must see every exposure, in every dtype."""
NAMED_SCHEDULES = 30
"""About 120 leaks whose sources are asked for."""

T = TypeVar("T")
References = Callable[[Mapping[str, Setting]], Reference]


class Response(msgspec.Struct, frozen=True):
    """One dtype and one share.

    Attributes:
        exposed: Requests to which something came across; with a share of 0, those to which it would have.
        lost: Requests whose every leak was rounded away where it happened: no exposure, and in no other count.
        seen: By way of looking, how many of the exposed it noticed.
        undecided: Exposed requests whose swap could not be compared to the end.
    """

    dtype: str
    share: float
    exposed: int
    lost: int
    seen: dict[str, int]
    undecided: int


class Naming(msgspec.Struct, frozen=True):
    """Whether the swap names whom a leak came from.

    Attributes:
        leaks: Victims asked about.
        right: Those whose named sources were exactly the ones of the record.
        sources: Sources in the record, over all victims.
    """

    leaks: int
    right: int
    sources: int


def responses(
    model: Model, count: int, dtypes: Sequence[str] = tuple(DTYPES), shares: Sequence[float] = (), one_cell: bool = False
) -> Iterator[Response]:
    """Every dtype and share on the first `count` schedules of the fixed workload.

    Args:
        one_cell: Instead of a share of all of V, one cell is moved, in each schedule another one.
    """
    shares = shares or (0.0, *(CELL_SHARES if one_cell else SHARES))
    clean = DecoderFactory(model)
    references = Judge(clean).reference  # one rounding bound and one memory for each dtype
    greedy = msgspec.structs.replace(Space.of(clean), sampling=False)  # what leaks, leaks into the logits
    drawn = list(itertools.islice(batches(schedules(greedy), WORKLOAD_SEED), count))
    for dtype, share in itertools.product(dtypes, shares):
        workload = [msgspec.structs.replace(schedule, settings={**schedule.settings, "dtype": dtype}) for schedule in drawn]
        yield run_trio(_response, _Leaky(model, share, references, one_cell), workload, dtype)


def naming(model: Model, count: int, share: float = 0.1, dtype: str = "float64") -> Naming:
    """Names the sources of every leak in `count` schedules of 3 to 6 requests.

    All tokens are forced: a neighbour's answer then never carries on what it was told itself, and the truth is the record.
    """
    leaky = _Leaky(model, share, Judge(DecoderFactory(model)).reference)
    return run_trio(_named, leaky, [crowd(leaky.factory, seed, dtype) for seed in range(count)])


def holds(measured: Sequence[Response], named: Naming) -> bool:
    """Whether the swap saw every exposure to `SWAP_SEES` or more and nothing where nothing was, and named all sources."""
    for response in measured:
        wanted = 0 if response.share == 0 else response.exposed
        if (response.share == 0 or response.share >= SWAP_SEES) and response.seen["swap"] != wanted:
            return False
    return named.right == named.leaks > 0


def crowd(factory: Factory, seed: int, dtype: str) -> Schedule:
    """3 to 6 requests that come one by one and overlap, every token of theirs forced."""
    dice = random.Random(seed)
    ordinary = [token for token in range(factory.vocabulary) if token not in factory.special_ids]
    ops: list[Op] = []
    for _ in range(dice.randint(3, 6)):
        new = dice.randint(1, 5)
        prompt, forced = dice.sample(ordinary, dice.randint(1, 12)), dice.sample(ordinary, new)
        ops += [Submit(Request(prompt=tuple(prompt), max_new_tokens=new, forced=tuple(forced))), Step(dice.randint(0, 2))]
    return Schedule(ops=tuple(ops), settings={"dtype": dtype, "slots": dice.choice((2, 3, 4, 8))})


class _Leaky:
    """A target with a leak, and what it takes to judge it."""

    def __init__(self, model: Model, share: float, references: References, one_cell: bool = False) -> None:
        self.share = share
        self.leaks = Leaks()
        self.factory = DecoderFactory(model, leaking(share, self.leaks, one_cell=one_cell))
        self.plan = model.plan
        self.references = references
        self.alphabet = Judge(self.factory).alphabet

    async def case(self, schedule: Schedule) -> tuple[Case, dict[int, set[int]], set[int]]:
        """A schedule replayed; who was exposed to whom, and whose leaks were lost."""
        self.leaks.begin(self._cell(schedule))
        trace = await play(self.factory, schedule, audits=False)
        case = Case(
            schedule=schedule,
            trace=trace,
            control=self.factory.control,
            references=self.references,
            alphabet=self.alphabet,
            context_tokens_max=self.factory.context_tokens_max(schedule.settings),
            thorough=True,
        )
        if not self.share:
            return case, {victim: set() for victim in self.leaks.tried}, set()
        return case, self.leaks.sources, self.leaks.lost

    def _cell(self, schedule: Schedule) -> Cell:
        """A cell by the schedule's own dice, drawn evenly over layers, heads, the first positions, K and V."""
        dice = random.Random(msgspec.json.encode(schedule.ops))
        layer = dice.randrange(len(self.plan.attending))
        heads = self.plan.layers[self.plan.attending[layer]].heads
        return Cell(layer, dice.randrange(heads), dice.randrange(CELL_POSITIONS), dice.random() < 0.5)

    async def ask(self, question: Generator[Schedule, Trace, T]) -> T:
        """Feeds a question the traces it asks for."""
        try:
            variant = next(question)
            while True:
                variant = question.send(await play(self.factory, variant, audits=False))
        except StopIteration as stop:
            answer: T = stop.value
            return answer


async def _response(leaky: _Leaky, workload: Sequence[Schedule], dtype: str) -> Response:
    exposed = lost = undecided = 0
    seen = dict.fromkeys(WAYS, 0)
    for schedule in workload:
        case, sources, rounded = await leaky.case(schedule)
        victims = sorted(sources)
        exposed += len(victims)
        lost += len(rounded)
        told = _by_reference(case, victims)
        for way, noticed in told.items():
            seen[way] += len(noticed)
        for victim in victims:
            change = await leaky.ask(_swap(case, victim))
            seen["swap"] += isinstance(change, Change)
            undecided += change is UNDECIDED
    return Response(dtype=dtype, share=leaky.share, exposed=exposed, lost=lost, seen=seen, undecided=undecided)


def _by_reference(case: Case, victims: Sequence[int]) -> dict[str, set[int]]:
    """Whom the reference finds fault with, by each of the three ways that ask it."""
    answers = {victim: case.answers[victim] for victim in victims}
    tokens = set()
    for victim, answer in answers.items():
        request = case.requests[victim]
        greedy = case.reference.logits(request.prompt, answer).argmax(-1).tolist()
        forced = len(request.forced)
        tokens |= {victim} if greedy[forced:] != list(answer[forced:]) else set()
    regret = departures(case.requests, answers, None, case.reference, case.control)
    rows = [event.logits for victim in victims for event in case.emitted[victim]]
    shown = [row for row in rows if row is not None]
    logits = departures(case.requests, answers, torch.stack(shown) if shown else None, case.reference, case.control)
    return {
        "tokens": tokens,
        "regret": {suspect.submission for suspect in regret},
        "logits": {suspect.submission for suspect in logits},
    }


def _swap(case: Case, victim: int) -> Generator[Schedule, Trace, object]:
    """One victim, all others exchanged; where that shows nothing, what they share with its prompt is exchanged as well."""
    others = [other for other in range(len(case.requests)) if other != victim]
    change = yield from compare(case, [victim], others)
    if isinstance(change, Change):
        return change
    everything = yield from compare(case, [victim], others, keep_shared=False)
    return everything if change is UNDECIDED or isinstance(everything, Change) else change


async def _named(leaky: _Leaky, workload: Sequence[Schedule]) -> Naming:
    leaks = right = sources = 0
    for schedule in workload:
        case, truth, _ = await leaky.case(schedule)
        for victim, reached_by in sorted(truth.items()):
            named = await leaky.ask(_sources(case, victim))
            leaks += 1
            right += set(named) == reached_by
            sources += len(reached_by)
    return Naming(leaks=leaks, right=right, sources=sources)


def _sources(case: Case, victim: int) -> Generator[Schedule, Trace, tuple[int, ...]]:
    change = yield from _swap(case, victim)
    if not isinstance(change, Change):
        return ()
    return (yield from conviction(case, change)).sources
