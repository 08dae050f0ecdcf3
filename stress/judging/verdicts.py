"""Verdicts: what became of all the responses of a run, as one file for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from oracle.finding import Verdict
from stress.judging.opinion import Opinion, Standing

SHOWN_MAX = 100
"""So many of the responses that are not right are written out; all of them stand in the ledger."""
NO_KIND = "undetermined"
"""What a response is called that is wrong, and no experiment has said of what kind."""


class StoredRepro(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong response, as a schedule that shows it.

    Attributes:
        path: In the run's folder.
        source, number: The response from which it came.
        by: How it was found: "account" or "timeline".
        http_wrong, http_tries: How often something is wrong when the live endpoint is asked for it; 0 of 0 where it is not.
    """

    path: str
    source: str
    number: int
    kind: str
    signature: str
    requests: int
    evaluations: int
    by: str
    http_wrong: int = 0
    http_tries: int = 0


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong response of an endpoint that is all there is, as a schedule that goes wrong there now and then.

    Attributes:
        path: In the run's folder.
        source, number: The response from which it came.
        wrong, tries: How often something was wrong.
    """

    path: str
    source: str
    number: int
    requests: int
    wrong: int
    tries: int


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a run.

    Attributes:
        verdict: PASS, UNKNOWN or FAIL.
        responses: Requests that were to be sent. Each is judged, lost, unjudged or unreached.
        judged: What was heard of it was held against what it should be, all of it.
        wrong: Of those that were judged.
        lost: Nothing was heard of it, or it broke off.
        unjudged: Nobody can say, or only an experiment that was not possible.
        unreached: It found no connection, so that there is nothing to judge. Where nothing else was asked nothing passes.
        suspects, refuted: Beyond rounding; and how many of those an experiment cleared.
        in_flight: Those of the lost of which nothing at all was heard.
        tokens, tokens_judged: Heard, and held against what they should be.
        kinds: Of what is wrong, by name.
        outcomes: As the clients had it.
        by: The judge.
        not_reproduced: Why wrong responses have no repro, a sentence each.
        not_right: Opinions that are not "right", the first of them.
    """

    verdict: str
    responses: int
    judged: int
    wrong: int
    lost: int
    unjudged: int
    unreached: int
    suspects: int
    refuted: int
    in_flight: int
    tokens: int
    tokens_judged: int
    kinds: dict[str, int]
    outcomes: dict[str, int]
    by: str
    seconds: float
    repros: tuple[StoredRepro, ...] = ()
    schedules: tuple[StoredSchedule, ...] = ()
    not_reproduced: tuple[str, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    not_right: tuple[Opinion, ...] = ()

    @property
    def worst(self) -> Verdict:
        """As an exit code wants it."""
        return Verdict[self.verdict]


def summed(
    opinions: Iterable[Opinion],
    *,
    in_flight: int,
    by: str,
    seconds: float,
    unreadable: Iterable[tuple[str, str]] = (),
    suspects: int = 0,
    refuted: int = 0,
    repros: Iterable[StoredRepro] = (),
    schedules: Iterable[StoredSchedule] = (),
    not_reproduced: Iterable[str] = (),
) -> Verdicts:
    """Counts opinions.

    Args:
        in_flight: Requests of which nothing was heard.
        suspects, refuted: As many there were before experiments decided.
    """
    every = list(opinions)
    bad_lines = tuple(unreadable)
    standing = Counter(opinion.standing for opinion in every)
    kinds = Counter(kind_of(opinion) for opinion in every if opinion.standing is Standing.WRONG)
    wrong, lost = standing[Standing.WRONG], standing[Standing.LOST] + in_flight
    unjudged = standing[Standing.UNJUDGED] + standing[Standing.SUSPECT] + len(bad_lines)
    judged = standing[Standing.RIGHT] + wrong
    verdict = Verdict.FAIL if wrong or lost else Verdict.UNKNOWN if unjudged or not judged else Verdict.PASS
    order = list(Standing)
    shown = sorted(
        (each for each in every if each.standing is not Standing.RIGHT), key=lambda each: order.index(each.standing)
    )
    return Verdicts(
        verdict=verdict.name,
        responses=len(every) + in_flight + len(bad_lines),
        judged=judged,
        wrong=wrong,
        lost=lost,
        unjudged=unjudged,
        unreached=standing[Standing.UNREACHED],
        suspects=suspects,
        refuted=refuted,
        in_flight=in_flight,
        tokens=sum(opinion.tokens for opinion in every),
        tokens_judged=sum(opinion.judged for opinion in every),
        kinds=dict(kinds.most_common()),
        outcomes=dict(Counter(opinion.outcome for opinion in every).most_common()),
        by=by,
        seconds=round(seconds, 3),
        repros=tuple(repros),
        schedules=tuple(schedules),
        not_reproduced=tuple(not_reproduced),
        unreadable=bad_lines,
        not_right=tuple(shown[:SHOWN_MAX]),
    )


def kind_of(opinion: Opinion) -> str:
    """What a wrong response is called: the first kind that any complaint has."""
    return next((complaint.kind.value for complaint in opinion.complaints if complaint.kind is not None), NO_KIND)


def format_verdicts(verdicts: Verdicts) -> str:
    """The sum on a few lines."""
    lines = [
        f"{verdicts.responses} responses: {verdicts.judged} judged, {verdicts.wrong} wrong, {verdicts.lost} lost, "
        f"{verdicts.unjudged} unjudged; {verdicts.tokens_judged} of {verdicts.tokens} tokens in {verdicts.seconds:.1f} s",
        "outcomes: " + ", ".join(f"{name} {count}" for name, count in verdicts.outcomes.items()),
    ]
    if verdicts.suspects:
        lines.append(f"suspects: {verdicts.suspects}, of which {verdicts.refuted} were rounding")
    if verdicts.unreached:
        lines.append(f"unreached: {verdicts.unreached} requests, which found no connection")
    if verdicts.in_flight:
        lines.append(f"in flight: {verdicts.in_flight} requests, of which nothing was heard")
    if verdicts.kinds:
        lines.append("kinds: " + ", ".join(f"{name} {count}" for name, count in verdicts.kinds.items()))
    for opinion in verdicts.not_right[:3]:
        said = opinion.complaints[0].what if opinion.complaints else opinion.why or opinion.outcome
        lines.append(f"{opinion.standing}: {opinion.source} #{opinion.number}: {said}")
    lines += [f"unreadable: {where}: {why}" for where, why in verdicts.unreadable[:3]]
    for repro in verdicts.repros:
        live = f"; at the endpoint in {repro.http_wrong} of {repro.http_tries} plays" if repro.http_tries else ""
        lines.append(f"{repro.kind}: {repro.requests} requests, {repro.path}{live}")
    lines += [
        f"wrong in {each.wrong} of {each.tries} plays: {each.requests} requests, {each.path}" for each in verdicts.schedules
    ]
    lines += [f"no repro: {sentence}" for sentence in verdicts.not_reproduced[:3]]
    return "\n".join(lines)
