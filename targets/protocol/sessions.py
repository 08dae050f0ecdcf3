"""Sessions: requests that go on from what another was asked and has answered, as the next turn of a chat does.

A schedule is made before any answer is known, so it only says from whom a request goes on. The prompt that is handed in is
known when that happens, and follows from the trace: prompt and answer, so far, of the one that it goes on from, and then its
own tokens. A target sees plain requests, and so does whoever judges: both are given the schedule *in full*.
"""

from __future__ import annotations

import msgspec

from targets.protocol.events import Asked, Emitted, Trace
from targets.protocol.schedule import Schedule, Submit, submissions, with_requests


def in_full(schedule: Schedule, trace: Trace | list[object]) -> Schedule:
    """The schedule with every prompt as it was handed in: nobody goes on from another, and all is said that was asked.

    Args:
        trace: What happened; where it ends early, what would have come later goes on from what is known at its end.
    """
    requests = submissions(schedule)
    if all(request.continues is None for request in requests):
        return schedule
    answers: list[list[int]] = [[] for _ in requests]
    prompts: list[tuple[int, ...]] = []

    def hand_in() -> None:
        request = requests[len(prompts)]
        before: tuple[int, ...] = ()
        if request.continues is not None:
            before = (*prompts[request.continues], *answers[request.continues])
        prompts.append(before + request.prompt)

    for event in trace:
        if isinstance(event, Emitted) and 0 <= event.submission < len(answers):
            answers[event.submission].append(event.token)
        elif isinstance(event, Asked) and event.op < len(schedule.ops) and isinstance(schedule.ops[event.op], Submit):
            hand_in()
    while len(prompts) < len(requests):
        hand_in()
    return with_requests(
        schedule, lambda which, request: msgspec.structs.replace(request, prompt=prompts[which], continues=None)
    )
