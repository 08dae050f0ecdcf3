"""The account: what became of each request of a run, read from all of its transcripts.

Lost is what was sent and neither heard to its end, nor given up by its client, nor refused: a connection that broke, a
stream that ended without saying so, silence, or a process of ours that ended first. What found no connection was never sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stress.load.desk import TRANSCRIPTS
from stress.transcript import Begun, Exchange, read_lines

LISTED_MAX = 100


class Lost(msgspec.Struct, frozen=True):
    """A request that was lost.

    Attributes:
        process: The transcript's name, which with `number` says which it was.
        heard_tokens, heard_pieces: Of its answer, until then.
        ended_s: When it was given up, of the machine's monotonic clock; None where nobody noticed.
    """

    process: str
    number: int
    user: str
    sent_s: float
    ended_s: float | None
    heard_tokens: int
    heard_pieces: int
    error: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests there were.

    Attributes:
        sent: All that were begun, the unreached included.
        unheard: Those of which no end was written down.
        unreached: Those that found no connection.
        lost: How many are lost; `in_flight` has the first of them.
    """

    sent: int
    answered: int
    cancelled: int
    refused: int
    failed: int
    cut: int
    unheard: int
    unreached: int
    lost: int
    in_flight: tuple[Lost, ...]


def transcripts(folder: Path) -> list[Path]:
    """The transcripts of a run."""
    return sorted((folder / TRANSCRIPTS).glob("*.jsonl"))


def exchanges(folder: Path, open_: dict[tuple[str, int], Begun]) -> Iterator[tuple[str, Exchange]]:
    """Every exchange with its process; at the end `open_` has what has no end."""
    for path in transcripts(folder):
        for _, line in read_lines(path):
            if isinstance(line, Begun):
                open_[path.stem, line.number] = line
            else:
                open_.pop((path.stem, line.exchange.number), None)
                yield path.stem, line.exchange


class Accountant:
    """Makes an account, an exchange at a time."""

    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        self.lost: list[Lost] = []

    def add(self, process: str, exchange: Exchange) -> None:
        """Counts one."""
        self.outcomes[exchange.outcome] += 1
        if exchange.outcome == "cut":
            self.lost.append(
                Lost(
                    process=process,
                    number=exchange.number,
                    user=exchange.user,
                    sent_s=exchange.sent_s,
                    ended_s=exchange.ended_s,
                    heard_tokens=len(exchange.tokens),
                    heard_pieces=len(exchange.pieces),
                    error=exchange.error,
                )
            )

    def account(self, open_: dict[tuple[str, int], Begun]) -> Account:
        """The account; `open_` are those without an end."""
        error = "no end was written down"
        unheard = [
            Lost(process, number, begun.user, begun.sent_s, None, 0, 0, error) for (process, number), begun in open_.items()
        ]
        lost = [*self.lost, *unheard]
        return Account(
            sent=self.outcomes.total() + len(unheard),
            answered=self.outcomes["answered"],
            cancelled=self.outcomes["cancelled"],
            refused=self.outcomes["refused"],
            failed=self.outcomes["failed"],
            cut=self.outcomes["cut"],
            unheard=len(unheard),
            unreached=self.outcomes["unreached"],
            lost=len(lost),
            in_flight=tuple(lost[:LISTED_MAX]),
        )
