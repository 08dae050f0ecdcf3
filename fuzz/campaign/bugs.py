"""Bugs: what a campaign knows of each signature. Stored ones are replayed; found ones are confirmed afresh and stored.

A repro leaves `found/` only for `repros/`, and only once a fresh process has shown the same failure bit for bit; the copy is
written before the original goes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fuzz import repro as repros
from fuzz.campaign.folder import ERROR, FAILED, FIXED, UNCONFIRMED, Bug, Campaign, Folder, write_json
from fuzz.campaign.tallies import Shard
from fuzz.fresh import Afresh, Manner, Outcome
from targets.protocol import BadInput

REPLAY_S = 120.0
"""A stored repro that takes longer to replay, alone, is an ERROR; several may take so long each."""
AGAIN_S = 5.0
"""What a full disk had no room for is tried again so often."""
STRANDED = "no room for "
_WORST = (FIXED, ERROR, UNCONFIRMED, FAILED)
"""Where several repros have one signature, the worst of them is what the bug is."""


@dataclass
class Told:
    """What is said as it happens; by default nothing."""

    replayed: Callable[[Path, str, str], None] = lambda *_: None
    found: Callable[[repros.Repro, Path], None] = lambda *_: None
    died: Callable[[str], None] = lambda _: None
    tick: Callable[[Any], None] = lambda _: None


class Bugs:
    """The bugs of one campaign; writes the campaign down whenever one of them changes.

    Attributes:
        unreadable: What lies among the repros and is none, a sentence each.
    """

    def __init__(self, folder: Folder, campaign: Campaign, manner: Manner, told: Told) -> None:
        self.folder = folder
        self.campaign = campaign
        self.manner = manner
        self.told = told
        self.by_signature = {bug.signature: bug for bug in campaign.bugs}
        self.unreadable: list[str] = []
        self.unsaved_s: float | None = None
        self._afresh: Afresh | None = None
        self._afresh_s = 0.0
        self._seen: set[Path] = set()
        self._queue: list[Path] = []
        self._stranded: list[repros.Repro] = []

    def replay_stored(self) -> None:
        """Replays every stored repro, and marks each FAILED, FIXED or ERROR."""
        stored: dict[Path, repros.Repro] = {}
        for path in sorted(self.folder.repros.glob("*.json")):
            repro = _loaded(path)
            if isinstance(repro, str):
                self.unreadable.append(repro)
                self.told.replayed(path, ERROR, repro)
            else:
                stored[path] = repro
        fresh: set[str] = set()
        outcomes = self._replayed(list(stored))
        for path, repro in stored.items():
            bug, said = self._note(repro, path.stat().st_mtime), outcomes.get(path)
            status = ERROR if said is None else said.outcome
            why = "replaying it ends the process, or never does" if said is None else said.error
            self.told.replayed(path, status, why)
            if bug.signature in fresh and _WORST.index(status) < _WORST.index(bug.status):
                continue
            fresh.add(bug.signature)
            bug.id, bug.status, bug.error = repro.id, status, why
            if status == FAILED:
                bug.last_seen_s = time.time()

    def _replayed(self, paths: Sequence[Path]) -> dict[Path, Outcome]:
        """How replays come out: all in one process; those of which it says nothing, each in one of its own."""
        told = self.folder.shards / "outcomes.json"
        outcomes: dict[Path, Outcome] = {}
        for group in (paths, *([path] for path in paths)):
            left = [path for path in group if path not in outcomes]
            if not left:
                continue
            afresh, until = Afresh(left, self.manner, told), time.monotonic() + REPLAY_S * len(left)
            try:
                while not afresh.over() and time.monotonic() < until:
                    time.sleep(0.05)
                outcomes |= afresh.outcomes()
            finally:
                afresh.end()
        return outcomes

    def collect(self) -> None:
        """Takes in what workers have found: a signature that is known needs no second repro."""
        self._unstrand()
        for path in self.folder.unconfirmed():
            repro = _loaded(path) if path not in self._seen else None
            self._seen.add(path)
            if not isinstance(repro, repros.Repro):
                continue
            bug = self.by_signature.get(repro.signature)
            if bug is not None and bug.status == FAILED:
                path.unlink(missing_ok=True)
                continue
            bug = self._note(repro, path.stat().st_mtime)
            bug.status, bug.last_seen_s = UNCONFIRMED, time.time()
            self._queue.append(path)
            self.save()
        if self.unsaved_s is not None and time.monotonic() - self.unsaved_s > AGAIN_S:
            self.save()

    def confirm(self) -> bool:
        """Goes on confirming what was found; whether there is more to do."""
        if self._afresh is None:
            if not self._queue:
                return False
            waiting, self._queue = self._queue, []
            self._afresh = Afresh(waiting, self.manner, self.folder.shards / "confirmed.json")
            self._afresh_s = time.monotonic()
        late = time.monotonic() - self._afresh_s > REPLAY_S * len(self._afresh.paths)
        if self._afresh.over() or late:
            outcomes = self._afresh.outcomes()
            self._afresh.end()
            for path in self._afresh.paths:
                self._confirmed(path, outcomes.get(path))
            self._afresh = None
            self.save()
        return self._afresh is not None or bool(self._queue)

    def _confirmed(self, path: Path, said: Outcome | None) -> None:
        repro = _loaded(path)
        if not isinstance(repro, repros.Repro):
            return
        bug = self.by_signature[repro.signature]
        if said is None or said.outcome != FAILED or not said.same_bits:
            if bug.status != FAILED:
                bug.status, bug.id = UNCONFIRMED, repro.id
                bug.error = f"{path} gives {said.outcome if said else 'nothing'} in a fresh process"
            return
        if bug.status == FAILED:  # two workers were at it at the same time
            path.unlink(missing_ok=True)
            return
        try:
            stored = repros.save(repro, self.folder.repros)
        except OSError:  # a full disk: it stays where it is, and is confirmed in the next session
            return
        bug.status, bug.id, bug.error = FAILED, repro.id, ""
        path.unlink(missing_ok=True)
        self.told.found(repro, stored)

    def stranded(self, output: str) -> None:
        """Takes over what a worker had no room for and said instead of writing it."""
        for line in output.splitlines():
            _, mark, data = line.partition(": ")
            if line.startswith(STRANDED) and mark:
                self._stranded.append(msgspec.json.decode(data, type=repros.Repro))

    @property
    def has_room(self) -> bool:
        """Whether nothing is left that there is no room for."""
        return not self._stranded

    def _unstrand(self) -> None:
        for repro in list(self._stranded):
            try:
                repros.save(repro, self.folder.found / "shard-none")
            except OSError:
                return
            self._stranded.remove(repro)

    def save(self) -> bool:
        """Writes the campaign down, and what nobody needs to follow up; on a full disk it is tried again.

        Returns whether there was room.
        """
        known = [bug.signature for bug in self.campaign.bugs if bug.status != FIXED]
        try:
            self.folder.save(self.campaign)
            write_json(self.folder.known, known)
            self.unsaved_s = None
        except OSError:
            self.unsaved_s = time.monotonic()
        return self.unsaved_s is None

    def close(self, shards: Iterable[Shard]) -> None:
        """Ends what is going on, counts how often each was seen, and writes it all down; says what there is no room for."""
        if self._afresh is not None:
            self._afresh.end()
        for signature, sight in itertools.chain.from_iterable(shard.sights.items() for shard in shards):
            bug = self.by_signature.get(signature)
            if bug is not None:
                bug.times += sight.times
                bug.last_seen_s = max(bug.last_seen_s, sight.last_s)
        self.save()
        self._unstrand()
        for repro in self._stranded:
            print(msgspec.json.encode(repro).decode())

    def _note(self, repro: repros.Repro, when_s: float) -> Bug:
        """The bug of a repro, added if nobody knows it yet."""
        bug = self.by_signature.get(repro.signature)
        if bug is None:
            bug = Bug(
                signature=repro.signature,
                id=repro.id,
                kind=repro.finding.kind,
                what=repro.finding.what,
                status=UNCONFIRMED,
                first_seen_s=when_s,
                last_seen_s=when_s,
                times=0,
            )
            self.by_signature[repro.signature] = bug
            self.campaign.bugs.append(bug)
        return bug


def _loaded(path: Path) -> repros.Repro | str:
    """A repro, or why it can't be read."""
    try:
        return repros.load(path)
    except BadInput as error:
        return " ".join(str(error).split())
