"""Warmth: what a request is given from a cache, somebody with the same tokens and the same salt must have left there.

This check needs no replay: a target says how many tokens were cached, and the schedule says who can have left them. Whether
what was given is right is asked by isolation, of every request, and then by experiment (`oracle.kinds`): a suspect with
cached tokens is played again with a salt that nobody else has.
"""

from __future__ import annotations

from collections.abc import Generator

from oracle.case import Case, alike
from oracle.finding import Finding, Report
from targets.protocol import Admitted, Asked, CheckName, Emitted, Kind, Schedule, Submit, Trace


def warmth(case: Case) -> Generator[Schedule, Trace, Report]:
    """STALE-HIT at each request that has more tokens cached than anybody can have left. Asks for no variants."""
    report = Report()
    tokens = {who: list(request.prompt) for who, request in enumerate(case.requests)}
    before: set[int] = set()
    blamed: set[int] = set()
    coming = iter(range(len(case.requests)))
    for index, event in enumerate(case.trace):
        if isinstance(event, Asked) and not case.control.stepped and event.op < len(case.schedule.ops):
            # Somebody may have left something before it is known to run, or have been cancelled by then.
            before |= {next(coming)} if isinstance(case.schedule.ops[event.op], Submit) else set()
        elif isinstance(event, Emitted) and event.submission in tokens:
            tokens[event.submission].append(event.token)
        elif isinstance(event, Admitted) and event.submission in tokens:
            who = event.submission
            what = _complaint(case, event, tokens, before - {who} if not case.control.stepped else before)
            before.add(who)
            if what is not None and who not in blamed:
                blamed.add(who)
                finding = Finding(kind=Kind.STALE_HIT, check=CheckName.WARMTH, what=what, submission=who, event=index)
                report.findings.append(finding)
    return report
    yield


def _complaint(case: Case, event: Admitted, tokens: dict[int, list[int]], before: set[int]) -> str | None:
    """What is wrong with the number of tokens that are said to be cached, or None.

    Args:
        tokens: Prompt and answer of each request, as far as they are known.
        before: Who was admitted before, and so can have left something; a preempted request itself, too.
    """
    who, cached = event.submission, event.cached
    if cached and cached >= len(tokens[who]):
        return f"request #{who} has all its {cached} tokens cached, and none is left to give the next one"
    salts = [request.salt if case.control.salts else None for request in case.requests]
    salted = [other for other in before if salts[other] == salts[who]]
    known = max((alike(tokens[who], tokens[other]) for other in salted), default=0)
    if cached > known:
        return f"request #{who} has {cached} tokens cached, and nobody before it with its salt had more than {known} of them"
    return None
