"""Panel: judges in processes of their own, each with a network of its own.

They are handed responses in bundles, and few bundles at a time. A judge that dies takes its bundle with it: what it had is
judged again by a new one, response by response; a response at which judges die twice is unjudged, and says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Protocol

import msgspec
import torch

from oracle.reference import Reference
from oracle.rounding import bound
from stress.endpoint.tokens import tokenizer_of
from stress.judging.following import Response, decoded
from stress.judging.network import NetworkJudge
from stress.judging.opinion import Opinion, Standing
from targets.protocol import Factory, Setting
from targets.registry import TargetSpec, build

BUNDLE = 16
AHEAD = 2
"""So many bundles wait for each judge."""
NICENESS = 10
"""Judges that work beside a load leave the processor to it."""


class _Told(msgspec.Struct, frozen=True):
    """What a judge is told of itself."""

    spec: TargetSpec
    settings: dict[str, Setting]
    foreign: bool


def judge_of(spec: TargetSpec, factory: Factory, settings: Mapping[str, Setting], foreign: bool = False) -> NetworkJudge:
    """A judge with a reference in the precision of these settings."""
    network = factory.network(settings)
    coarse = settings.get("kv_dtype", "same") not in ("same", str(settings.get("dtype", "float64")))
    reference = Reference(network, bound(network, factory.vocabulary), coarse)
    tokenizer = tokenizer_of(factory, "" if ":" in spec.target else spec.model)
    room = factory.context_tokens_max(settings)
    return NetworkJudge(reference, factory.control, factory.vocabulary, room, tokenizer, foreign)


class Judges(Protocol):
    """Who judges bundles."""

    @property
    def full(self) -> bool:
        """Whether no more bundles should be handed in now."""

    @property
    def waiting(self) -> bool:
        """Whether something that was handed in is not judged yet."""

    def hand_in(self, bundle: list[Response]) -> None:
        """Gives the judges a bundle."""

    def heard(self, seconds: float) -> list[Opinion]:
        """What the judges found since the last time; waits so long for the first of it."""

    def left(self) -> list[Response]:
        """What was handed in and is not judged yet."""

    def close(self) -> None:
        """Sends the judges home."""


class Alone:
    """One judge, in this process."""

    def __init__(self, judge: NetworkJudge) -> None:
        self.judge = judge
        self._bundles: list[list[Response]] = []

    @property
    def full(self) -> bool:
        """One bundle is enough."""
        return self.waiting

    @property
    def waiting(self) -> bool:
        """Until it is heard."""
        return bool(self._bundles)

    def hand_in(self, bundle: list[Response]) -> None:
        """Takes it down."""
        self._bundles.append(bundle)

    def heard(self, seconds: float) -> list[Opinion]:
        """Judges what was handed in."""
        bundles, self._bundles = self._bundles, []
        return [opinion for bundle in bundles for opinion in _judged(self.judge, bundle)]

    def left(self) -> list[Response]:
        """What was handed in last."""
        return [response for bundle in self._bundles for response in bundle]

    def close(self) -> None:
        """Nothing is held."""


class Panel:
    """Judges at work.

    Attributes:
        died: How often judges died.
    """

    def __init__(
        self, spec: TargetSpec, settings: Mapping[str, Setting], workers: int, nice: bool, foreign: bool = False
    ) -> None:
        self.told = msgspec.json.encode(_Told(spec, dict(settings), foreign))
        self.workers = workers
        self.nice = nice
        self.died = 0
        self._waiting: dict[Future[list[Opinion]], list[Response]] = {}
        self._pool = self._opened()

    @property
    def pids(self) -> list[int]:
        """Of the judges that have begun."""
        return list(self._pool._processes or ())

    @property
    def waiting(self) -> bool:
        """Whether bundles are being judged."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether no more bundles should be handed in now."""
        return len(self._waiting) >= self.workers * AHEAD

    def hand_in(self, bundle: list[Response]) -> None:
        """Gives the judges a bundle."""
        try:
            self._waiting[self._pool.submit(_judge, self.told, bundle)] = bundle
        except BrokenProcessPool:
            self._renew()
            self._waiting[self._pool.submit(_judge, self.told, bundle)] = bundle

    def heard(self, seconds: float) -> list[Opinion]:
        """What the judges found since the last time; waits so long for the first of it."""
        done, _ = wait(self._waiting, seconds, return_when=FIRST_COMPLETED)
        found: list[Opinion] = []
        broken: list[Response] = []
        for future in done:
            bundle = self._waiting.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                broken += bundle
            else:
                found += future.result()
        if broken:
            broken += [response for bundle in self._waiting.values() for response in bundle]
            self._waiting.clear()
            found += self._one_by_one(broken)
        return found

    def left(self) -> list[Response]:
        """As `Judges.left`."""
        return [response for bundle in self._waiting.values() for response in bundle]

    def close(self) -> None:
        """Sends the judges home."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _opened(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=_begin, initargs=(self.told, self.nice))

    def _renew(self) -> None:
        self.died += 1
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._opened()

    def _one_by_one(self, responses: Sequence[Response]) -> list[Opinion]:
        """Judges what judges died over, a response at a time, so that one alone is to blame."""
        self._renew()
        found = []
        for response in responses:
            for _ in range(2):
                try:
                    found += self._pool.submit(_judge, self.told, [response]).result()
                    break
                except BrokenProcessPool:
                    self._renew()
            else:
                found.append(unjudged(response, "its judges died"))
        return found


def unjudged(response: Response, why: str) -> Opinion:
    """The opinion of nobody."""
    exchange = decoded(response.raw).exchange
    return Opinion(
        source=response.source,
        number=response.number,
        outcome=exchange.outcome,
        standing=Standing.UNJUDGED,
        tokens=len(exchange.tokens),
        submission=exchange.submission,
        why=why,
    )


def _begin(told: bytes, nice: bool) -> None:
    """Makes this process a judge."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who hands the bundles out
    if nice:
        os.nice(NICENESS)
    torch.set_num_threads(1)
    _this_judge(told)


@cache
def _this_judge(told: bytes) -> NetworkJudge:
    """The judge of this process, made once."""
    known = msgspec.json.decode(told, type=_Told)
    return judge_of(known.spec, build(known.spec), known.settings, known.foreign)


def _judge(told: bytes, bundle: list[Response]) -> list[Opinion]:
    """Judges a bundle in a process that is a judge."""
    return _judged(_this_judge(told), bundle)


def _judged(judge: NetworkJudge, bundle: list[Response]) -> list[Opinion]:
    found = []
    for response in bundle:
        try:
            found.append(judge.judge(response.source, decoded(response.raw).exchange))
        except Exception as error:  # a judge that fails has no opinion, and the next response is another matter
            found.append(unjudged(response, f"its judge failed: {type(error).__name__}: {error}"))
    return found
