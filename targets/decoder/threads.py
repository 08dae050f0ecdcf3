"""Threads: each row's forward on a thread of its own, and who goes on is the schedule's choice.

The threads are real and their order is not theirs: one runs at a time, and it gives its turn away only at the *hand-over
points*, before, between and after the write and the read of each layer's cells. Who takes it follows from the settings and
from what was run before, so that a replay is exact. What a thread must not share with another, it therefore shares here
every time, and not once in a thousand runs.

With the lock a thread keeps its turn to the end of its forward: the others would only wait for it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from targets.decoder.layout import Layout
from targets.decoder.private import PrivateStore
from targets.decoder.rows import Rows
from targets.decoder.runner import Feed, Runner
from targets.models import Plan


class Turns:
    """Lets threads run one at a time.

    Attributes:
        order: 0 for one after the other, round and round; else the seed from which the next one is drawn.
        current: Whose turn it is; None while nobody runs.
        finished: Who is done, in that order.
        handed_over: How often another thread went on where one gave its turn away.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.dice = random.Random(order)
        self.current: int | None = None
        self.finished: list[int] = []
        self.handed_over = 0
        self.kept = False
        self._gates: list[threading.Semaphore] = []
        self._back = threading.Semaphore(0)

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs each job on a thread of its own until all are done.

        Raises:
            Exception: what the first job that raised had raised; the others were run to their ends.
        """
        self._gates = [threading.Semaphore(0) for _ in jobs]
        self.finished, waiting = [], list(range(len(jobs)))
        raised: dict[int, BaseException] = {}

        def work(number: int) -> None:
            self._gates[number].acquire()
            try:
                jobs[number]()
            except BaseException as error:  # raised again where the jobs were handed in
                raised[number] = error
            self.finished.append(number)
            self._back.release()

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in waiting]
        for thread in threads:
            thread.start()
        last: int | None = None
        while waiting:
            self.current = self._next(waiting, last)
            self.handed_over += last in waiting and self.current != last
            last = self.current
            self._gates[last].release()
            self._back.acquire()
            waiting = [number for number in waiting if number not in self.finished]
        self.current = None
        for thread in threads:
            thread.join()
        for _, error in sorted(raised.items()):
            raise error

    def hand_over(self) -> None:
        """The running thread gives its turn away, and goes on when it is its turn again."""
        mine = self.current
        if mine is None or self.kept:
            return
        self._back.release()
        self._gates[mine].acquire()

    @contextlib.contextmanager
    def keep(self, kept: bool) -> Iterator[None]:
        """Whoever runs keeps its turn meanwhile, if `kept`."""
        before, self.kept = self.kept, self.kept or kept
        try:
            yield
        finally:
            self.kept = before

    def _next(self, waiting: Sequence[int], last: int | None) -> int:
        if self.order:
            return self.dice.choice(waiting)
        return next((number for number in waiting if last is not None and number > last), waiting[0])


class ThreadStore(PrivateStore):
    """A cache for each request, whose writes and reads are where threads hand over.

    Attributes:
        turns: Whose turn it is.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        super().__init__(plan, layout)
        self.turns = Turns(layout.turns)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> None:
        self.turns.hand_over()
        super().write(layer, keys, values, rows)
        self.turns.hand_over()

    def read(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        cells = super().read(layer, rows)
        self.turns.hand_over()
        return cells


class ThreadRunner(Runner):
    """Runs each row's forward on a thread of its own."""

    store: ThreadStore

    def run(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """As of every runner: logits [B, V] in the order of the feeds."""
        forward = self.forward if self.plan.continues else self.forward_from_nothing
        turns, locked = self.store.turns, self.store.layout.lock
        logits: dict[int, torch.Tensor] = {}

        def job(number: int) -> Callable[[], None]:
            def go() -> None:
                with torch.inference_mode(), turns.keep(locked):  # which of the two modes it is, each thread has for itself
                    logits[number] = forward([feeds[number]])[0]

            return go

        turns.run([job(number) for number in range(len(feeds))])
        self.counts["handed_over"] = turns.handed_over
        return self.collect(logits)

    def collect(self, logits: dict[int, torch.Tensor]) -> torch.Tensor:
        """Puts the rows' logits together, each by its number."""
        return torch.stack([logits[number] for number in sorted(logits)])
