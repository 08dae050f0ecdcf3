"""Ledger: a file of results, a JSON object a line. Each is added when it is there, so a bench that is stopped loses nothing.

What the ledger has is not done again, unless slotfuzz itself has changed since: a result says of which sources it is.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import msgspec

import fuzz
import oracle
import targets
from fuzz.fault_bench.attempts import Task, Trial, attempt
from fuzz.fault_bench.exchanges import Exchanged, ExchangeTask, play_exchange
from fuzz.fault_bench.pairs import Pair, PairTask, play_pair
from fuzz.fault_bench.twins import Twin, TwinTask, play_twin
from fuzz.run import set_threads
from targets.protocol import BadInput

AnyTask = Task | TwinTask | PairTask | ExchangeTask
Result = Trial | Twin | Pair | Exchanged


class Entry(msgspec.Struct, frozen=True):
    """A line of the ledger: a result, and the sources that it is of."""

    version: str
    result: Result


@functools.cache
def version() -> str:
    """A digest of all sources that a result may depend on, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for package in (fuzz, oracle, targets):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{package.__name__}/{path.relative_to(root)}".encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def perform(task: AnyTask) -> Result:
    """Does one task, in this process."""
    if isinstance(task, Task):
        return attempt(task)
    if isinstance(task, TwinTask):
        return play_twin(task)
    return play_pair(task) if isinstance(task, PairTask) else play_exchange(task)


def read(path: Path) -> list[Entry]:
    """All entries, the last one of each task; a line that was cut off when it was written is none.

    Raises:
        BadInput: for a file that is no ledger.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    entries: dict[AnyTask, Entry] = {}
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = msgspec.json.decode(line, type=Entry)
        except msgspec.MsgspecError as error:
            raise BadInput("ledger", "results of bench faults, one a line", str(error), f"{path}, line {number}") from error
        entries[entry.result.task] = entry
    return list(entries.values())


def add(path: Path, result: Result) -> None:
    """Writes a result behind the others, in place of a line that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
    with path.open("r+b" if path.exists() else "wb") as ledger:
        ledger.truncate(whole)
        ledger.seek(whole)
        ledger.write(msgspec.json.encode(Entry(version(), result)) + b"\n")


def missing(path: Path, tasks: Iterable[AnyTask]) -> list[AnyTask]:
    """Those of which the ledger has no result of these sources."""
    done = {entry.result.task for entry in read(path) if entry.version == version()}
    return [task for task in tasks if task not in done]


def performed(tasks: Iterable[AnyTask], workers: int, do: Callable[[AnyTask], Result] = perform) -> Iterator[Result]:
    """Results as they come; with several workers, each in a process of its own.

    Raises:
        BadInput: where a worker ended by itself, as under a memory limit.
    """
    if workers == 1:
        yield from map(do, tasks)
        return
    waiting = iter(tasks)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin) as pool:
        pending = {pool.submit(do, task) for task in itertools.islice(waiting, 2 * workers)}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    pending |= {pool.submit(do, task) for task in itertools.islice(waiting, 1)}
        except BrokenProcessPool as error:
            raise BadInput("worker", "alive until its task is done", "one that ended by itself", "--workers") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin() -> None:
    """A worker has one thread, and ends at once when the terminal says so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_threads()
