"""Repros: wrong responses of a run as schedules that show them again, judged and shrunk as usual, confirmed and stored.

A response is looked for in the target's own account, where there is one, in ever longer windows; else in the timeline that
its clients saw, with ever more history and moved about. What goes wrong there need not be that very response: a window that
shows any failure is as good. Each bug is one repro, by its signature.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fuzz import repro as repros
from fuzz.followup import Failure
from fuzz.repro import Repro
from fuzz.search import Limits, Search
from fuzz.worker import stage_for
from oracle.finding import Verdict
from oracle.kinds import decide
from stress.judging.opinion import Opinion, Standing
from stress.judging.verdicts import StoredRepro, StoredSchedule
from stress.recording.account import Life
from stress.recording.narrowing import Narrower, suspects
from stress.recording.timeline import variations
from stress.recording.windows import Account
from stress.transcript import Exchange
from targets.protocol import CheckName, Factory, Kind, Schedule, Setting, submissions
from targets.registry import TargetSpec

TRIES_EACH = 3
"""So many responses are looked for, for each repro that is wanted."""
WINDOWS_MAX = 20
"""So many schedules are played in search of one response."""
SECONDS_EACH = 120.0
"""After so long in search of one response it is given up."""
LOOKED_FOR = {
    Kind.BOOKKEEPING: (CheckName.BOOKKEEPING, CheckName.ISOLATION),
    Kind.CRASHED: (CheckName.SURVIVAL,),
    Kind.NONFINITE: (CheckName.SURVIVAL,),
    Kind.ECHO: (CheckName.ECHO, CheckName.ISOLATION),
}
"""The checks that should nominate what is complained of, the likeliest first; else isolation. Any other will do as well."""


@dataclass
class Found:
    """What became of the responses that were looked for.

    Attributes:
        stored: The repros.
        kinds: What experiments say a response is, by its name.
        refuted: Names of responses that experiments cleared.
        said: Why there is no repro, a sentence each.
        schedules: What goes wrong at an endpoint that is all there is.
    """

    stored: list[StoredRepro] = field(default_factory=list)
    kinds: dict[tuple[str, int], Kind] = field(default_factory=dict)
    refuted: set[tuple[str, int]] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    schedules: list[StoredSchedule] = field(default_factory=list)


class Reproducer:
    """Looks for responses, one after another.

    Attributes:
        heard: What clients heard, by the response's name.
        settings: What was served, where no account says it.
        found: Is told of everything.
    """

    def __init__(
        self,
        spec: TargetSpec,
        factory: Factory,
        settings: dict[str, Setting],
        folder: Path,
        heard: dict[tuple[str, int], Exchange],
        lives: Sequence[Life] | None,
        found: Found,
    ) -> None:
        self.spec = spec
        self.factory = factory
        self.settings = settings
        self.folder = folder
        self.heard = heard
        self.others = sorted(heard.values(), key=lambda each: each.sent_s)
        self.account = None if lives is None else Account(lives, self.others)
        undrawn = {knob.name for knob in factory.knobs if not knob.drawn}
        self.fixed = {name: value for name, value in settings.items() if name in undrawn}
        self.search = Search(factory, 0, Limits(), self.fixed, stage=stage_for(spec, factory))
        self.found = found

    async def run(self, opinions: Sequence[Opinion], repros_max: int) -> None:
        """Looks for wrong responses until there are enough repros, or none comes of several."""
        self.search.judge.reference(self.settings)
        fruitless = 0
        for opinion in in_turn(opinions, repros_max * TRIES_EACH):
            if len(self.found.stored) >= repros_max or fruitless >= TRIES_EACH:
                break
            before = len(self.search.tally.failures)
            await self.look_for(opinion)
            fruitless = 0 if len(self.search.tally.failures) > before else fruitless + 1

    async def look_for(self, opinion: Opinion) -> None:
        """Makes one response a repro, if it can be."""
        exchange = self.heard[opinion.name]
        narrower, until = Narrower(self.search.judge), time.monotonic() + SECONDS_EACH
        windows = 0
        for by, schedule in self.candidates(exchange):
            if windows >= WINDOWS_MAX or time.monotonic() > until:
                break
            windows += 1
            nominated = await narrower.nominations(schedule)
            check = _first(opinion, nominated)
            if check is None:
                continue
            small = await narrower.narrow(schedule, check, nominated[check])
            tally = self.search.tally
            failures, failing = len(tally.failures), tally.failing
            await self.search.one(small)
            for failure in tally.failures[failures:]:
                self.store(failure, opinion, by)
            if tally.failing > failing:
                return  # whether it is a new bug or one that is known: more of it would be more of the same
        wrong = f"{opinion.source} #{opinion.number}"
        self.found.said.append(f"{wrong}: {windows} schedules were played, and nothing was found that is not known")

    def candidates(self, exchange: Exchange) -> Iterator[tuple[str, Schedule]]:
        """Schedules in which a response may be found."""
        if self.account is not None:
            for schedule in self.account.windows(exchange, self.others):
                yield "account", schedule
        for schedule in variations(self.others, exchange, self.settings):
            yield "timeline", schedule

    def store(self, failure: Failure, opinion: Opinion, by: str) -> None:
        """Keeps a failure if it fails in a fresh process too, bit for bit."""
        bound = self.search.judge.reference(self.settings).bound
        repro = repros.make(failure, self.spec, self.factory, bound, 0)
        path = repros.save(repro, self.folder / "repros")
        if not confirmed(path, repro):
            path.unlink()
            self.found.said.append(f"{opinion.source} #{opinion.number}: its repro does not fail in a fresh process")
            return
        if failure.finding.kind is not Kind.OWNERSHIP:  # which is of storage, and of no answer
            self.found.kinds.setdefault(opinion.name, failure.finding.kind)
        self.found.stored.append(
            StoredRepro(
                path=str(path.relative_to(self.folder)),
                source=opinion.source,
                number=opinion.number,
                kind=failure.finding.kind,
                signature=failure.signature,
                requests=len(submissions(failure.schedule)),
                evaluations=failure.evaluations,
                by=by,
            )
        )

    async def decide(self, opinion: Opinion, until: float) -> None:
        """Lets experiments decide on a suspect, on the shortest window in which it is answered as it was.

        Args:
            until: When it is given up, on the monotonic clock.
        """
        exchange, judge = self.heard[opinion.name], self.search.judge
        windows = [] if self.account is None else self.account.windows(exchange, self.others)
        for schedule in windows:
            case = judge.case(schedule, await judge.replay(schedule))
            for suspect in suspects(case):
                answer = case.answers[suspect.submission]
                same_prompt = case.requests[suspect.submission].prompt == exchange.request.prompt
                if not same_prompt or answer[: len(exchange.tokens)] != exchange.tokens:
                    continue
                report = await judge.drive(decide(case, suspect))
                if report.verdict is Verdict.FAIL:
                    self.found.kinds[opinion.name] = report.findings[0].kind
                elif report.refuted:
                    self.found.refuted.add(opinion.name)
                return
            if time.monotonic() > until:
                return


def in_turn(opinions: Sequence[Opinion], count: int) -> list[Opinion]:
    """The opinions to look into, of each sort of complaint one at a time, the earliest first."""
    sorts: dict[str, list[Opinion]] = {}
    for opinion in opinions:
        kind = opinion.complaints[0].kind if opinion.complaints else None
        sorts.setdefault(f"{opinion.standing} {kind}", []).append(opinion)
    found: list[Opinion] = []
    for turn in range(count):
        found += [each[turn] for each in sorts.values() if turn < len(each)]
    return found[:count]


def confirmed(path: Path, repro: Repro) -> bool:
    """Whether a repro fails in a fresh process, with the same bits."""
    own = ["--target", repro.target.target] if ":" in repro.target.target else []
    outcomes = path.with_suffix(".outcome")
    command = [sys.executable, "-P", "-m", "fuzz", "replay", *own, "--json", str(outcomes), str(path)]
    subprocess.run(command, capture_output=True, check=False)
    try:
        rows = msgspec.json.decode(outcomes.read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    outcomes.unlink()
    return bool(rows) and rows[0]["outcome"] == "FAILED" and bool(rows[0]["same_bits"])


def _first(opinion: Opinion, nominated: dict[CheckName, int]) -> CheckName | None:
    """The check that should have nominated what is complained of, if it has; else another one."""
    kind = next((complaint.kind for complaint in opinion.complaints if complaint.kind is not None), None)
    likely = LOOKED_FOR.get(kind, (CheckName.ISOLATION,)) if kind else (CheckName.ISOLATION,)
    if opinion.standing is Standing.LOST:
        likely = (CheckName.PROGRESS, CheckName.SURVIVAL, CheckName.OWNERSHIP)
    return next((check for check in (*likely, *nominated) if check in nominated), None)
