"""Bookkeeping: each request's stream is its answer, ends once, and ends for the right reason."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from oracle.case import Case
from oracle.finding import Finding, Report
from oracle.sampling import is_stopped
from targets.protocol import (
    Asked,
    Cancel,
    CheckName,
    Control,
    Crashed,
    Emitted,
    Finished,
    Kind,
    Reason,
    Refused,
    Request,
    Schedule,
    Stalled,
    Stepped,
    Submit,
    Trace,
)

HEARD = (Emitted, Finished, Refused)
"""What a target says to a client."""


def bookkeeping(case: Case) -> Generator[Schedule, Trace, Report]:
    """BOOKKEEPING at each request's first complaint. Asks for no variants."""
    report = Report()
    seen: set[int] = set()
    for index, submission, what in complaints(case):
        if submission not in seen:
            seen.add(submission)
            report.findings.append(
                Finding(
                    kind=Kind.BOOKKEEPING,
                    check=CheckName.BOOKKEEPING,
                    what=what,
                    submission=submission,
                    event=index,
                    answer=case.answers.get(submission, ()),
                )
            )
    return report
    yield


def complaints(case: Case) -> Iterator[tuple[int, int, str]]:
    """Everything amiss, as (event, submission, sentence), in the order of the trace."""
    streamed: dict[int, list[int]] = {}
    submitted_at: dict[int, int] = {}
    cancelled: set[int] = set()
    ended: set[int] = set()
    seconds = 0
    coming = iter(range(len(case.requests)))
    for index, event in enumerate(case.trace):
        if isinstance(event, Stepped):
            seconds = event.step + 1
        elif isinstance(event, Asked) and event.op < len(case.schedule.ops):
            op = case.schedule.ops[event.op]
            if isinstance(op, Submit):
                submitted_at[next(coming)] = seconds
            elif isinstance(op, Cancel):
                cancelled.add(op.submission)
        elif isinstance(event, HEARD):
            who = event.submission
            if who not in submitted_at:
                yield index, who, f"request #{who} was answered before it asked"
            elif who in ended:
                yield index, who, f"request #{who} hears more after its end"
            elif isinstance(event, Emitted):
                streamed.setdefault(who, []).append(event.token)
                if who in cancelled:
                    yield index, who, f"request #{who} gets a token after it was cancelled"
                if (odd := case.alphabet.complaint(event)) is not None:
                    yield index, who, f"request #{who} gets {odd}"
                yield from _token(index, who, case.requests[who], streamed[who], case.control)
            else:
                ended.add(who)
                if isinstance(event, Finished):
                    waited_s = seconds - 1 - submitted_at[who]  # it ends at the start of a step, before its second
                    yield from _end(index, event, case, streamed.get(who, []), who in cancelled, waited_s)
    if not any(isinstance(event, Crashed | Stalled) for event in case.trace):
        for who in submitted_at:
            if who not in ended:
                yield len(case.trace), who, f"request #{who} never ends"


def _token(index: int, who: int, request: Request, streamed: list[int], control: Control) -> Iterator[tuple[int, int, str]]:
    count = len(streamed)
    if count > request.max_new_tokens:
        yield index, who, f"request #{who} gets token {count} of {request.max_new_tokens}"
    if count > 1 and is_stopped(request, streamed[:-1], control.sampling):
        ended_by = "token" if streamed[-2] in request.stop else "sequence, which ends with"
        yield index, who, f"request #{who} goes on after its stop {ended_by} {streamed[-2]}"
    if control.forced and count <= len(request.forced) and streamed[-1] != request.forced[count - 1]:
        yield index, who, f"request #{who} gets {streamed[-1]} where {request.forced[count - 1]} was forced"


def _end(
    index: int, event: Finished, case: Case, streamed: list[int], cancelled: bool, waited_s: int
) -> Iterator[tuple[int, int, str]]:
    who, request = event.submission, case.requests[event.submission]
    if list(event.tokens) != streamed:
        yield index, who, f"request #{who} streamed {streamed} but ends with {list(event.tokens)}"
    stopped = is_stopped(request, streamed, case.control.sampling)
    full = len(streamed) >= request.max_new_tokens
    rightful = {
        Reason.STOP: stopped,
        Reason.LENGTH: full and not stopped,
        Reason.CONTEXT: len(request.prompt) + len(streamed) >= case.context_tokens_max and not (stopped or full),
        Reason.CANCELLED: cancelled,
        Reason.ROOM: case.control.gives_up,
        Reason.DEADLINE: request.deadline_s is not None and waited_s >= request.deadline_s,
    }
    if not rightful[event.reason]:
        count = len(streamed)
        yield (
            index,
            who,
            f"request #{who} ends with reason '{event.reason}' after {count} of {request.max_new_tokens} tokens",
        )
