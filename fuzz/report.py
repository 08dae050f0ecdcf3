"""Report: findings and totals as text for people and as data for programs. Rendering only: nothing is decided here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fuzz.coverage import Figures
from fuzz.feasible import SIZES
from fuzz.forwards import Fill, Forwards
from fuzz.mechanisms import MECHANISMS, possible
from fuzz.repro import Repro
from fuzz.search import Tally
from oracle.finding import Finding, Verdict
from targets.protocol import CheckName, Control, Knob, Setting, format_schedule, submissions, with_defaults
from targets.registry import TargetSpec

EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 3}
"""2 is for bad use and bad input."""


def format_finding(finding: Finding) -> str:
    """What is wrong, what was expected, and the evidence, on a few lines."""
    lines = [f"{finding.kind}  {finding.what}  (check: {finding.check})"]
    if finding.expected is not None and finding.actual is not None:
        if finding.expected == finding.actual:
            lines.append(f"  token {finding.position}: {finding.actual}, as alone; its logits are not")
        else:
            lines.append(f"  token {finding.position}: expected {finding.expected}, got {finding.actual}")
    if finding.isolated:
        lines.append(f"  alone it answers  {_tokens(finding.isolated)}")
        lines.append(f"  here it answers   {_tokens(finding.answer)}")
    lines += [f"  {sentence}" for sentence in finding.evidence]
    return "\n".join(lines)


def format_repro(repro: Repro, path: Path) -> str:
    """A stored failure: finding, minimal schedule, and the command that shows it again."""
    requests, ops, prompt, new = sizes(repro)
    proof = "1-minimal" if repro.minimal else "not proven minimal: the evaluations ran out"
    return "\n".join(
        [
            format_finding(repro.finding),
            f"  smallest schedule: {requests} request{'s' * (requests != 1)}, {ops} ops, "
            f"{prompt} prompt and {new} new tokens "
            f"({repro.evaluations} evaluations, {proof})",
            "",
            *("    " + line for line in format_schedule(repro.schedule).splitlines()),
            "",
            f"  {replay_of(repro, path)}",
        ]
    )


def replay_of(repro: Repro, path: Path) -> str:
    """The line that shows one stored failure again."""
    return replay_command(repro.target, path, memory_gib=repro.memory_gib)


def replay_command(spec: TargetSpec, *paths: Path, memory_gib: float | None) -> str:
    """The line that shows stored failures again; a target of one's own has to be named, and the limit that it ran into."""
    own = ["--target", spec.target] if ":" in spec.target else []
    limit = [] if memory_gib is None else ["--memory-gib", f"{memory_gib:g}"]
    return shlex.join(["slotfuzz", "replay", *own, *limit, *map(str, paths)])


def sizes(repro: Repro) -> tuple[int, int, int, int]:
    """Requests, ops other than submits, prompt tokens and new tokens of a repro's schedule."""
    requests = submissions(repro.schedule)
    return (
        len(requests),
        len(repro.schedule.ops) - len(requests),
        sum(len(request.prompt) for request in requests),
        sum(request.max_new_tokens for request in requests),
    )


def format_settings(knobs: tuple[Knob, ...], settings: Mapping[str, Setting]) -> str:
    """Every knob with its value or the values that it is drawn from, and its unit."""
    chosen = with_defaults(knobs, settings)
    lines = []
    for knob in knobs:
        drawn = knob.drawn and knob.name not in settings and len(knob.values) > 1
        value = "drawn from " + " ".join(map(str, knob.values)) if drawn else str(chosen[knob.name])
        lines.append(f"  {knob.name:<20} {value}{' ' + knob.unit if knob.unit else ''}")
    return "\n".join(lines)


def format_tally(tally: Tally, control: Control, fill: Fill, share_outside: float | None, verdict: Verdict) -> str:
    """The totals of a run on a target with this control, and what it never exercised.

    Args:
        fill: Of the target's forwards.
        share_outside: Of the time, what was not spent in forwards; None where they are out of reach.
    """
    report = tally.report
    speed = tally.tokens_checked / tally.seconds if tally.seconds else 0.0
    where = "" if share_outside is None else f", {share_outside:.0%} of the time outside forwards"
    lines = [
        f"{tally.schedules} schedules, {tally.tokens_checked} tokens checked in {tally.seconds:.1f} s "
        f"({speed:.0f} a second{where})",
        f"swaps: {report.pairs} compared, {report.pairs_undecided} undecided; "
        f"suspects: {report.suspects}, of which {report.refuted} were rounding",
        "mechanisms: " + ", ".join(f"{name} {tally.mechanisms[name]}" for name in _counted(tally) if tally.mechanisms[name]),
    ]
    if fill.padding_share is not None:
        full = "" if fill.batch_fill is None else f"{fill.batch_fill:.0%} of the rows that slots allow, "
        lines.append(f"forwards: {full}{fill.padding_share:.0%} of the places in them padding")
    if tally.sanitized:
        lines.append(
            f"sanitizer: {report.cells} cells looked at; poisoned replays: {report.poisoned} compared, "
            f"{report.poisoned_undecided} undecided"
        )
    idle = [name for name in _counted(tally, possible(control)) if not tally.mechanisms[name]]
    if idle:
        lines.append("never happened: " + ", ".join(idle))
    if unasked := checks_without_question(control, tally.sanitized):
        lines.append("checks with nothing to ask: " + ", ".join(f"{name} ({why})" for name, why in unasked.items()))
    lines.append("life-cycle events: " + "; ".join(format_grams(size, tally.coverage.figures(size)) for size in SIZES))
    if tally.mute:
        lines.append("undecided: the model hardly reacts to its prompt (see reactivity above); another model is needed")
    lines += [f"undecided: {sentence}" for sentence in tally.unknown[:3]]
    lines += [f"unstable: {sentence}" for sentence in tally.unstable[:3]]
    lines += [f"a check crashed: {sentence}" for sentence in tally.crashed_checks[:3]]
    if verdict is Verdict.PASS and tally.schedules:
        lines.append(
            f"nothing found: with 95% confidence at most {failing_share_max(tally):.2g} of such schedules fail (3/n)"
        )
    return "\n".join(lines)


def checks_without_question(control: Control, sanitized: bool) -> dict[CheckName, str]:
    """The checks that pass because there is nothing in this target, or in this run, for them to look at, and why."""
    hidden = "" if sanitized else "without --sanitize"
    why = {
        CheckName.OWNERSHIP: "" if control.audit else "it gives no account",
        CheckName.WARMTH: "" if control.shares else "nothing is shared",
        CheckName.SWAP: "" if control.stepped else "not stepped: only suspects",
        CheckName.PROVENANCE: hidden if control.tags else "no shadow tags",
        CheckName.RESIDUE: hidden if control.poison else "no poison",
    }
    return {name: reason for name, reason in why.items() if reason}


def format_grams(size: int, figures: Figures) -> str:
    """The coverage of grams of one size, in a few words."""
    feasible = "" if figures.feasible is None else f" of {figures.feasible} feasible"
    share = f" ({figures.seen / figures.feasible:.0%})" if figures.feasible else ""
    reach = f", {figures.new_a_schedule:.2g} new a schedule, at least {figures.within_reach:.0f} more within reach"
    unforeseen = f", {len(figures.unforeseen)} unforeseen ({next(iter(figures.unforeseen))})" if figures.unforeseen else ""
    return f"{figures.seen}{feasible} {size}-grams{share}{reach}{unforeseen}"


def _counted(tally: Tally, any_target: Sequence[str] = MECHANISMS) -> list[str]:
    """What is counted for any target, then what this one counts itself."""
    return [*any_target, *sorted(tally.mechanisms.keys() - set(MECHANISMS))]


def as_json(fields: Mapping[str, object]) -> bytes:
    """What a run comes to, as JSON."""
    return msgspec.json.format(msgspec.json.encode(fields), indent=1)


def totals(tally: Tally, forwards: Forwards, seed: int, bound: float, verdict: Verdict) -> dict[str, object]:
    """The totals of a run, in the fields that the documentation names.

    Args:
        forwards: Of the target and of the reference.
        bound: The rounding bound.
    """
    report = tally.report
    return {
        "verdict": verdict.name,
        "seed": seed,
        "rounding_bound": bound,
        "schedules": tally.schedules,
        "failing": tally.failing,
        "tokens_checked": tally.tokens_checked,
        "seconds": tally.seconds,
        "seconds_in_target_forwards": forwards.target_s,
        "seconds_in_reference_forwards": forwards.reference_s,
        "padding_share": forwards.fill.padding_share,
        "batch_fill": forwards.fill.batch_fill,
        "mechanisms": {name: tally.mechanisms[name] for name in _counted(tally)},
        "grams": {str(size): tally.coverage.figures(size) for size in SIZES},
        "suspects": report.suspects,
        "refuted": report.refuted,
        "unknown": len(tally.unknown),
        "pairs": report.pairs,
        "undecided_pairs": report.pairs_undecided,
        "cells": report.cells,
        "poisoned": report.poisoned,
        "undecided_poisoned": report.poisoned_undecided,
        "unstable": tally.unstable,
        "crashed_checks": tally.crashed_checks,
        "failing_share_max_95": failing_share_max(tally) if verdict is Verdict.PASS else None,
    }


def finding_fields(path: Path, repro: Repro) -> dict[str, object]:
    """A stored failure, in the fields that the documentation names."""
    requests, ops, prompt, new = sizes(repro)
    return {
        "id": repro.id,
        "signature": repro.signature,
        "kind": repro.finding.kind,
        "check": repro.finding.check,
        "requests": requests,
        "ops": ops,
        "prompt_tokens": prompt,
        "new_tokens": new,
        "evaluations": repro.evaluations,
        "minimal": repro.minimal,
        "repro": str(path),
    }


def failing_share_max(tally: Tally) -> float:
    """Upper end, with 95% confidence, of the share of failing schedules where none of n failed: 3/n."""
    return min(1.0, 3 / tally.schedules) if tally.schedules else 1.0


def _tokens(tokens: tuple[int, ...]) -> str:
    shown = " ".join(map(str, tokens[:24]))
    return f"[{shown}{' …' if len(tokens) > 24 else ''}]"
