"""A campaign's page: what is new, what failed again, what was exercised and what was not, and how fast it went."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fuzz import repro as repros
from fuzz.campaign.folder import ERROR, FAILED, FIXED, UNCONFIRMED, Bug, Campaign, Folder, Session, read_json
from fuzz.campaign.tallies import Merged, Shard, merge
from fuzz.coverage import Figures
from fuzz.feasible import SIZES
from fuzz.mechanisms import MECHANISMS
from fuzz.pages.render import render
from fuzz.report import failing_share_max, replay_of
from oracle.finding import Verdict
from targets.protocol import BadInput, format_schedule

NEVER_SHOWN = 60
COLOURS = {FAILED: "bad", FIXED: "good", ERROR: "odd", UNCONFIRMED: "odd"}
WORDS = {
    Verdict.FAIL: ("bad", "something is wrong"),
    Verdict.UNKNOWN: ("odd", "undecided"),
    Verdict.PASS: ("good", "nothing found"),
}


@dataclass(frozen=True)
class Row:
    """A bug on the page.

    Attributes:
        new: Whether the last session saw it first.
        schedule: The smallest one that shows it; empty where its file is gone.
        page: Of its own, where there is one beside this page.
    """

    bug: Bug
    new: bool
    schedule: str
    replay: str
    page: str


@dataclass(frozen=True)
class Past:
    """A session on the page."""

    number: int
    session: Session
    schedules: int

    @property
    def speed(self) -> float:
        """Schedules a second, of all workers together."""
        return self.schedules / self.session.seconds if self.session.seconds else 0.0


@dataclass(frozen=True)
class State:
    """A campaign as it is read from its folder.

    Attributes:
        last: The shards of the last session.
        verdict: Of the last session.
    """

    folder: Folder
    campaign: Campaign
    every: Merged
    last: Merged
    past: list[Past]
    verdict: Verdict


def read_state(folder: Folder) -> State:
    """Reads a campaign.

    Raises:
        BadInput: where there is none.
    """
    campaign = folder.begun()
    if campaign is None:
        raise BadInput("campaign", "a folder in which one has begun", folder.out)
    cycles = campaign.cycles
    sanitized = bool(campaign.settings.get("sanitize"))
    shards = {number: read_json(folder.tally(number), Shard) for number in range(campaign.next_shard)}
    there = {number: shard for number, shard in shards.items() if shard is not None}
    past = [
        Past(index, session, sum(there[number].schedules for number in session.shards if number in there))
        for index, session in enumerate(campaign.sessions, 1)
    ]
    mine = campaign.sessions[-1].shards if campaign.sessions else []
    every = merge(there.values(), cycles, sanitized)
    last = merge((there[number] for number in mine if number in there), cycles, sanitized)
    return State(folder, campaign, every, last, past, verdict_of(campaign, last))


def verdict_of(campaign: Campaign, last: Merged) -> Verdict:
    """Of the last session: what failed, in a replay or for the first time; else whether all could be judged."""
    if any(bug.status == FAILED for bug in campaign.bugs):
        return Verdict.FAIL
    session = campaign.sessions[-1] if campaign.sessions else None
    unjudged = any(bug.status in (ERROR, UNCONFIRMED) for bug in campaign.bugs)
    if unjudged or session is None or session.undecided or not last.tally.schedules:
        return Verdict.UNKNOWN
    return last.tally.verdict


def campaign_page(state: State, live: bool = False) -> str:
    """The page of a campaign, as one HTML file.

    Args:
        live: Whether it goes on, so that the page is to be read again.
    """
    return render("campaign.html", live=live, **campaign_fields(state))


def campaign_fields(state: State) -> dict[str, object]:
    """What a campaign's page shows."""
    campaign, tally = state.campaign, state.every.tally
    began = campaign.sessions[-1].began_s if campaign.sessions else 0.0
    order = (FAILED, UNCONFIRMED, ERROR, FIXED)
    rows = sorted(
        (_row(state, bug, began) for bug in campaign.bugs), key=lambda row: (order.index(row.bug.status), not row.new)
    )
    of_its_own = sorted(tally.mechanisms.keys() - set(MECHANISMS))
    fired = {name: tally.mechanisms[name] for name in (*campaign.possible, *of_its_own)}
    figures = {size: tally.coverage.figures(size) for size in SIZES}
    return {
        "campaign": campaign,
        "verdict": WORDS[state.verdict],
        "rows": rows,
        "new": sum(row.new and row.bug.status == FAILED for row in rows),
        "colours": COLOURS,
        "fired": {name: count for name, count in fired.items() if count},
        "most": max([1, *fired.values()]),
        "never": [name for name, count in fired.items() if not count],
        "grams": {size: _grams(each) for size, each in figures.items()},
        "tally": tally,
        "last": state.last.tally,
        "past": state.past,
        "fastest": max([1e-9, *(past.speed for past in state.past)]),
        "share_outside": state.last.share_outside,
        "failing_share": failing_share_max(state.last.tally) if state.verdict is Verdict.PASS else None,
        "folder": state.folder.out,
    }


def _row(state: State, bug: Bug, began_s: float) -> Row:
    path = state.folder.repros / f"{bug.id}.json"
    try:
        repro = repros.load(path)
    except BadInput:
        repro = None
    page = state.folder.out / "pages" / f"{bug.id}.html"
    return Row(
        bug,
        new=bug.first_seen_s >= began_s,
        schedule="" if repro is None else format_schedule(repro.schedule),
        replay="" if repro is None else replay_of(repro, path),
        page=f"pages/{bug.id}.html" if page.is_file() else "",
    )


def _grams(figures: Figures) -> dict[str, object]:
    """The figures of one size, and which were never seen."""
    return {
        "figures": figures,
        "share": figures.seen / figures.feasible if figures.feasible else None,
        "never": figures.never[:NEVER_SHOWN],
        "more": max(0, len(figures.never) - NEVER_SHOWN),
    }


def write_page(folder: Folder, path: Path) -> State:
    """Reads a campaign and writes its page; returns what was read."""
    state = read_state(folder)
    repros.write_atomically(path, campaign_page(state).encode())
    return state
