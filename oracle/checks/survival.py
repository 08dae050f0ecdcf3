"""Survival: nothing crashes, and every logit is finite."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

import torch

from oracle.case import Case
from oracle.finding import Finding, Report
from targets.protocol import (
    Admitted,
    Asked,
    CheckName,
    Crashed,
    Emitted,
    Finished,
    Freed,
    Kind,
    Refused,
    Schedule,
    Stepped,
    Submit,
    Trace,
    format_schedule,
)


def survival(case: Case) -> Generator[Schedule, Trace, Report]:
    """CRASHED where the target raised, NONFINITE at a request's first NaN or infinite logit. Asks for no variants."""
    return Report(findings=[*_crashes(case), *_nonfinite(case)])
    yield


def _crashes(case: Case) -> Iterator[Finding]:
    for index, event in enumerate(case.trace):
        if isinstance(event, Crashed):
            yield Finding(
                kind=Kind.CRASHED,
                check=CheckName.SURVIVAL,
                what=_what(event),
                submission=event.submissions[0] if len(event.submissions) == 1 else None,
                event=index,
                evidence=tuple(_circumstances(case, index)),
            )


def _what(crash: Crashed) -> str:
    if crash.doing == "answer":
        return f"a call came back with what is no answer: {crash.error}"
    return f"{crash.doing} {'ended the process, which' if crash.fatal else 'raised'} {crash.error}"


def _circumstances(case: Case, crash: int) -> Iterator[str]:
    """What was under way at a crash (an index into the trace): the line, the op, the step, and each live request."""
    event = case.trace[crash]
    if isinstance(event, Crashed) and event.at:
        yield f"raised at {event.at}"
    op, step, coming = None, None, iter(range(len(case.requests)))
    live: dict[int, int] = {}  # submission -> tokens so far
    slots: dict[int, int] = {}
    for event in case.trace[:crash]:
        if isinstance(event, Asked):
            op = event.op
            if op < len(case.schedule.ops) and isinstance(case.schedule.ops[op], Submit):
                live[next(coming)] = 0
        elif isinstance(event, Stepped):
            step = event.step
        elif isinstance(event, Emitted) and event.submission in live:
            live[event.submission] += 1
        elif isinstance(event, Finished | Refused):
            live.pop(event.submission, None)
        elif isinstance(event, Admitted):
            slots[event.submission] = event.slot
        elif isinstance(event, Freed):
            slots.pop(event.submission, None)
    if op is not None:
        yield f"under way: {_op(case.schedule, op)}" + ("" if step is None else f"; the last step was {step}")
    if not live:
        yield "live requests: none"
    for who in sorted(live):
        slot = f" in slot {slots[who]}" if who in slots else ""
        yield f"live: #{who}{slot}, {len(case.requests[who].prompt)} prompt and {live[who]} new tokens"


def _op(schedule: Schedule, op: int) -> str:
    """An op as the printed schedule has it; past the last one, the steps until all have ended."""
    if op >= len(schedule.ops):
        return "the steps after the last op"
    plain = Schedule(ops=schedule.ops)
    return f"op {op}, " + " ".join(format_schedule(plain).splitlines()[op].split()[1:])


def _nonfinite(case: Case) -> Iterator[Finding]:
    # A sum is finite only if every addend is; on the way to it half types would overflow.
    if case.logits is not None and case.logits.sum(dtype=torch.float64).isfinite():
        return
    for submission, events in case.emitted.items():
        for position, event in enumerate(events):
            shown = event.logits is not None and not event.logits.isfinite().all()
            if shown or any(math.isnan(value) for _, value in event.logprobs):
                what = "logits that are not finite" if shown else "a log-probability that is no number"
                yield Finding(
                    kind=Kind.NONFINITE,
                    check=CheckName.SURVIVAL,
                    what=f"request #{submission} has {what} at token {position}",
                    submission=submission,
                    position=position,
                )
                break
