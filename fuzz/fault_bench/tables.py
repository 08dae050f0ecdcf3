"""Tables: the figures of a bench in Markdown, which reads as well in a terminal. Rendering only: nothing is counted here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from fuzz.fault_bench.attempts import Trial
from fuzz.fault_bench.exchanges import Exchanged
from fuzz.fault_bench.figures import BUCKETS_S, HARD, Against, Line, Whole
from fuzz.fault_bench.pairs import Pair
from fuzz.fault_bench.twins import Twin
from fuzz.fault_bench.ways import OURS, WAYS


def markdown(
    whole: Sequence[Whole],
    beside: Sequence[Against],
    lines: Sequence[Line],
    twins: Sequence[Twin],
    pairs: Sequence[Pair],
    exchanges: Sequence[Exchanged],
) -> str:
    """Everything, the summary first."""
    parts = []
    if whole:
        parts += ["## Each way, over all faults", of_ways(whole), *map(of_the_unfound, whole)]
    if beside:
        parts += ["## Ours beside the others", of_comparisons(beside), *map(of_the_named, beside)]
    if twins:
        parts += ["## Honest twins", of_twins(twins)]
    if pairs:
        parts += ["## Two at once", of_pairs(pairs)]
    if exchanges:
        parts += ["## Fields that two requests exchange", of_exchanges(exchanges)]
    if ours := [line for line in lines if line.way == OURS]:
        parts += ["## Each fault", of_faults(ours)]
    return "\n\n".join(part for part in parts if part) + "\n"


def of_ways(whole: Iterable[Whole]) -> str:
    """A row a way."""
    edges = [f"< {edge:g} s" for edge in BUCKETS_S]
    heading = [
        "way",
        "faults",
        "solved",
        "found",
        "trials",
        "detected",
        *edges,
        "median s",
        "worst of the solved s",
        "right",
    ]
    heading += ["near", "1-minimal", "evaluations", "worst"]
    rows = []
    for each in whole:
        shrunk = each.way == OURS
        rows.append(
            [
                each.way,
                each.faults,
                each.solved,
                each.found,
                each.trials,
                each.detected,
                *each.buckets,
                _seconds(each.seconds_median),
                _seconds(each.seconds_worst),
                *((each.right, each.near, each.minimal) if shrunk else ("",) * 3),
                *((f"{each.evaluations_median:g}", each.evaluations_worst) if shrunk else ("",) * 2),
            ]
        )
    return _table(heading, rows)


def of_the_unfound(each: Whole) -> str:
    """Which faults a way never found."""
    what = f"never found {_names(each.never)}" if each.never else "found each at least once"
    return f"{each.way} ({WAYS[each.way].doc}) {what}."


def of_comparisons(beside: Iterable[Against]) -> str:
    """A row for each way that ours is held against."""
    heading = ["beside", f"faults on which it takes {HARD:g} schedules or more", "of these, never found", "ours takes fewer"]
    rows = [
        [each.way, each.hard, each.bounds, "" if each.fewer is None else f"{each.fewer:.1f} times"]
        for each in beside
    ]  # fmt: skip
    return _table(heading, rows)


def of_the_named(each: Against) -> str:
    """Which faults only one of the two found."""
    text = f"Only slotfuzz, not {each.way}: {_names(each.only_ours)}. Only {each.way}: {_names(each.only_theirs)}."
    return text + (f" Never found by slotfuzz, and in the mean all the same: {_names(each.lost)}." if each.lost else "")


def of_twins(twins: Sequence[Twin]) -> str:
    """All twins in a sentence, and whatever was amiss."""
    schedules, suspects = sum(twin.judged for twin in twins), sum(twin.suspects for twin in twins)
    alarms = [f"{twin.task.fault}: {alarm}" for twin in twins for alarm in twin.alarms]
    unseen = [twin.task.fault for twin in twins if not twin.reached]
    unlike = [twin.task.fault for twin in twins if twin.changed]
    lines = [
        f"{len({twin.task.fault for twin in twins})} twins, {schedules} schedules, {suspects} suspects, "
        f"{sum(twin.refuted for twin in twins)} of them refuted, {len(alarms)} alarms. "
        f"Never reached: {_names(unseen)}. Not honest: {_names(unlike)}.",
        *(f"- {alarm}" for alarm in alarms),
    ]
    return "\n".join(lines)


def of_pairs(pairs: Sequence[Pair]) -> str:
    """A row a pair."""
    rows = [
        [
            pair.task.first,
            pair.task.second,
            "yes" if pair.both_found else "no",
            len(pair.signatures),
            pair.pure,
            "; ".join(f"{signature} ({cause})" for signature, cause in pair.signatures),
        ]
        for pair in pairs
    ]
    found = sum(pair.both_found for pair in pairs)
    signatures, pure = sum(len(pair.signatures) for pair in pairs), sum(pair.pure for pair in pairs)
    told = f"Both found in {found} of {len(pairs)} pairs; {pure} of {signatures} signatures have one cause."
    return told + "\n\n" + _table(["first", "second", "both found", "signatures", "of one cause", "which"], rows)


def of_exchanges(exchanges: Iterable[Exchanged]) -> str:
    """A row a field."""
    rows = [
        [
            each.task.field,
            each.changed,
            f"> {each.judged}" if each.found is None else each.found,
            f"{each.kind} {each.check}".strip(),
            each.shareable,
            "yes" if each.is_right else "NO",
        ]
        for each in exchanges
    ]
    return _table(["field", "made a difference", "found after", "as", "may be shared, as", "right"], rows)


def of_faults(lines: Iterable[Line]) -> str:
    """A row a fault, of ours."""
    heading = ["fault", "class", "reached", "triggered", "detected", "schedules", "worst", "seconds", "worst", "by", "right"]
    heading += ["wrong too", "evaluations", "worst", "seconds", "near", "1-minimal"]
    rows = []
    for line in lines:
        found = line.detected > 0
        rows.append(
            [
                line.fault,
                line.group,
                line.reached,
                line.triggered,
                f"{line.detected} of {line.trials}",
                *((f"{median(line.schedules):g}", line.schedules[-1]) if found else (f"> {line.per_detection:g}", "")),
                *((_seconds(median(line.seconds)), _seconds(line.seconds[-1])) if found else ("", "")),
                ", ".join(line.checks),
                line.right,
                line.wrong,
                *((f"{median(line.evaluations):g}", line.evaluations[-1]) if found else ("", "")),
                _seconds(median(line.shrink_s)) if found else "",
                line.near,
                line.minimal,
            ]
        )
    return _table(heading, rows)


def format_trials(trials: Sequence[Trial], name: str = "") -> str:
    """Trials of one fault, or of several, on one line."""
    found = [trial for trial in trials if trial.found is not None]
    line = f"{name or trials[0].task.fault:<26} found {len(found)} of {len(trials)}"
    if not found:
        return line
    evaluations = [trial.evaluations for trial in found]
    close = sum(trial.is_near for trial in found)
    kinds = " ".join(sorted({trial.kind for trial in found}))
    before, after = sum(trial.right_first for trial in found), sum(trial.right for trial in found)
    sources = [trial.source_right for trial in found if trial.source_right is not None]
    return (
        f"{line}  after {median(trial.found or 0 for trial in found):g} schedules (worst "
        f"{max(trial.found or 0 for trial in found)})  evaluations {median(evaluations):g} (worst {max(evaluations)})  "
        f"minimal {sum(trial.minimal for trial in found)}  near the smallest {close}  "
        f"wrong kind or check {sum(bool(trial.wrong) for trial in trials)}  "
        f"kind right before shrinking {before}, after {after}  source right {sum(sources)} of {len(sources)}  {kinds}"
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [list(heading), ["---"] * len(heading), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
