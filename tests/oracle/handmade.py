"""Cases and traces written by hand: what a check sees, without a target behind it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress

from oracle.case import Alphabet, Case, Check
from oracle.finding import Report
from oracle.reference import Reference
from targets.protocol import Cancel, Control, Event, Request, Schedule, Setting, Step, Submit, Trace

LIFE = Schedule(
    ops=(
        Submit(Request(prompt=(1, 2, 3), max_new_tokens=9)),
        Submit(Request(prompt=(4,), max_new_tokens=6)),
        Step(2),
        Cancel(0),
        Submit(Request(prompt=(4, 6), max_new_tokens=4)),
        Submit(Request(prompt=(4, 7, 8, 9), max_new_tokens=3)),
    ),
    settings={"sanitize": True, "slots": 3},
)
"""One gives up, two that begin alike come in one step and one of them takes its slot, and somebody goes on throughout."""
FORCED = Control(salts=True, forced=True, logits=True, audit=True)


def nobody_to_ask(settings: Mapping[str, Setting]) -> Reference:
    """The references of a case whose check must not need one."""
    raise AssertionError(f"this check needs no reference, got asked for {settings}")


def asked(*prompts: tuple[int, ...], new: int = 2) -> Schedule:
    """Requests handed in together."""
    return Schedule(ops=tuple(Submit(Request(prompt=prompt, max_new_tokens=new)) for prompt in prompts))


def case_of(
    schedule: Schedule,
    trace: Trace,
    *,
    control: Control = FORCED,
    references: Callable[[Mapping[str, Setting]], Reference] = nobody_to_ask,
    alphabet: Alphabet | None = None,
    context_tokens_max: int = 64,
    thorough: bool = False,
) -> Case:
    """A case with everything at its plainest."""
    return Case(
        schedule=schedule,
        trace=trace,
        control=control,
        references=references,
        alphabet=alphabet or Alphabet(16, (0,)),
        context_tokens_max=context_tokens_max,
        thorough=thorough,
    )


def report_of(check: Check, case: Case, play: Callable[[Schedule], Trace] | None = None) -> Report:
    """What a check returns when `play` makes the traces it asks for; without one it must ask for none."""
    reports: list[Report] = []

    def kept() -> Generator[Schedule, Trace, None]:
        reports.append((yield from check(case)))

    running, trace = kept(), None
    with suppress(StopIteration):
        while True:
            wanted = next(running) if trace is None else running.send(trace)
            assert play is not None, "this check asks for no variants"
            trace = play(wanted)
    return reports[0]


def sentences(check: Check, schedule: Schedule, *events: Event, control: Control = FORCED) -> list[str]:
    """What a check that asks for no variants says of a trace."""
    return [finding.what for finding in report_of(check, case_of(schedule, events, control=control)).findings]
