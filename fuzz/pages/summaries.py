"""Summaries of a campaign for those who look after it at night: JUnit's XML for a CI's list of tests, Markdown for its page.

Green, red or undecided: what could not be judged is an error in the one and says so in the other, and never a pass.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from fuzz.campaign.folder import FAILED, FIXED, Bug
from fuzz.pages.campaign import State
from fuzz.pages.render import figure, span, when
from oracle.finding import Verdict

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNKNOWN: "undecided"}
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


def junit(state: State) -> bytes:
    """A test for each signature, and one for the search of the last session."""
    suite = ET.Element("testsuite", name=f"slotfuzz {state.campaign.target.target}")
    failures = errors = 0
    for bug in state.campaign.bugs:
        case = ET.SubElement(suite, "testcase", classname=f"slotfuzz.{bug.kind}", name=_text(bug.signature))
        if bug.status == FAILED:
            failures += 1
            ET.SubElement(case, "failure", message=_text(bug.what)).text = _text(_said(bug))
        elif bug.status != FIXED:
            errors += 1
            ET.SubElement(case, "error", message=f"{bug.status}: {_text(bug.error)}").text = _text(_said(bug))
    tally, session = state.last.tally, state.campaign.sessions[-1]
    search = ET.SubElement(suite, "testcase", classname="slotfuzz", name="search", time=f"{session.seconds:.1f}")
    search.set("assertions", str(tally.schedules))
    undecided = _undecided(state)
    if undecided:
        errors += 1
        ET.SubElement(search, "error", message=_text(undecided[0])).text = _text("\n".join(undecided))
    suite.set("tests", str(len(state.campaign.bugs) + 1))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    whole: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return whole


def markdown(state: State) -> str:
    """Verdict, signatures, and what the last session did."""
    campaign, tally, session = state.campaign, state.last.tally, state.campaign.sessions[-1]
    new = [bug for bug in campaign.bugs if bug.first_seen_s >= session.began_s and bug.status == FAILED]
    lines = [
        f"## slotfuzz: {COLOURS[state.verdict]}",
        "",
        f"{_cell(campaign.target.target)}: {figure(tally.schedules)} schedules by {session.workers} workers in "
        f"{span(session.seconds)}, {len(new)} new signatures. Seed {campaign.seed}, session {len(campaign.sessions)}.",
        "",
    ]
    if campaign.bugs:
        lines += ["| | signature | what | first seen | last seen | repro |", "|---|---|---|---|---|---|"]
        for bug in campaign.bugs:
            status = f"**{bug.status}**" + (", new" if bug in new else "")
            seen = f"{when(bug.first_seen_s)} | {when(bug.last_seen_s)}"
            lines.append(f"| {status} | {_cell(bug.signature)} | {_cell(bug.what)} | {seen} | `{bug.id}` |")
        lines.append("")
    lines += [f"- undecided: {_cell(sentence)}" for sentence in _undecided(state)]
    lines += [f"- a worker ended early: {_cell(sentence)}" for sentence in session.deaths]
    never = [name for name, count in tally.mechanisms.items() if not count]
    lines += [f"- never happened: {', '.join(never)}"] if never else []
    return "\n".join(lines) + "\n"


def _undecided(state: State) -> list[str]:
    """What keeps the last session's search from a pass, where nothing failed in it."""
    tally, session = state.last.tally, state.campaign.sessions[-1]
    said = [*session.undecided, *tally.unknown, *tally.unstable, *tally.crashed_checks]
    return said if said or tally.schedules else ["no schedule was judged"]


def _said(bug: Bug) -> str:
    return "\n".join(
        line
        for line in (
            bug.what,
            bug.error,
            f"repro {bug.id}",
            f"first seen {when(bug.first_seen_s)}, {bug.times} times looked at",
        )
        if line
    )


def _text(text: str) -> str:
    """What XML can hold."""
    return _NO_XML.sub("?", text)


def _cell(text: str) -> str:
    """Text that stays in its cell and is taken for no markup."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", flat)
