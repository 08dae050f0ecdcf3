"""Workload: requests whose lengths are spread as asked, and a target that serves them, as fast as it can."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from targets.protocol import BadInput, Factory, Finished, Refused, Request, Setting, Target, check_settings

PROMPT, ANSWER = 32, 32
"""The longest prompt and the longest answer of the usual mix, in tokens."""
SMALL_PROMPT, SMALL_ANSWER = 6, 3
"""The same where as little as possible is done."""
IDLE_STEPS_MAX = 1000
DTYPE = "float32"


def mixed(factory: Factory, count: int, spread: float, prompt: int = PROMPT, answer: int = ANSWER) -> list[Request]:
    """Requests whose prompts and answers are evenly spread from (1 - spread) of the longest up to it, in random order.

    Prompt and answer are drawn apart, so that a long prompt has a long answer no more often than a short one. The same
    arguments give the same requests. There are no stop ids, and special ids are not asked.
    """
    dice = random.Random(f"{count} {spread} {prompt} {answer}")
    plain = [token for token in range(factory.vocabulary) if token not in factory.special_ids]
    sizes = [_spread(count, spread, longest, dice) for longest in (prompt, answer)]
    return [
        Request(prompt=tuple(dice.choices(plain, k=asked)), max_new_tokens=given)
        for asked, given in zip(*sizes, strict=True)
    ]


def longest(small: bool) -> tuple[int, int]:
    """The longest prompt and the longest answer of the usual mix."""
    return (SMALL_PROMPT, SMALL_ANSWER) if small else (PROMPT, ANSWER)


def _spread(count: int, spread: float, longest: int, dice: random.Random) -> list[int]:
    steps = max(count - 1, 1)
    lengths = [max(1, round(longest * (1 - spread * index / steps))) for index in range(count)]
    dice.shuffle(lengths)
    return lengths


def alike(requests: Sequence[Request], size: int) -> list[list[Request]]:
    """Length buckets: the requests sorted by the tokens they will hold, and cut into groups of `size`."""
    ordered = sorted(requests, key=lambda request: len(request.prompt) + request.max_new_tokens)
    return as_they_come(ordered, size)


def as_they_come(requests: Sequence[Request], size: int) -> list[list[Request]]:
    """The requests in their order, cut into groups of `size`."""
    return [list(requests[first : first + size]) for first in range(0, len(requests), size)]


def settings_for(factory: Factory, slots: int, changes: Mapping[str, Setting] | None = None) -> dict[str, Setting]:
    """Settings with so many slots, under which nothing is refused or held back; knobs that a target lacks are left out.

    Raises:
        BadInput: for a change that no knob takes.
    """
    wanted: dict[str, Setting] = {"slots": slots, "queue_max": 100_000, "admit_max": 1024, "dtype": DTYPE}
    known = {knob.name for knob in factory.knobs}
    settings = {name: value for name, value in wanted.items() if name in known} | dict(changes or {})
    if "pool_tokens" in known:
        settings.setdefault("pool_tokens", slots * factory.context_tokens_max(settings))
    check_settings(factory.knobs, settings)
    return settings


class Server:
    """One target that stays open, so that its slots are used again and again."""

    def __init__(self, factory: Factory, settings: Mapping[str, Setting]) -> None:
        self.target: Target = factory.open(settings)
        self.submissions = 0

    def serve(self, requests: Sequence[Request]) -> int:
        """Submits them all at once and steps until all have ended; returns how many tokens they were given."""
        waiting, tokens = self.submit(requests), 0
        for ended in self.steps(waiting):
            tokens += ended
        return tokens

    def in_groups(self, groups: Sequence[Sequence[Request]]) -> int:
        """Serves one group after another; the next is submitted when the last has ended."""
        return sum(self.serve(group) for group in groups)

    def submit(self, requests: Sequence[Request]) -> int:
        """Hands them in; returns how many."""
        for request in requests:
            refused = [event for event in self.target.submit(self.submissions, request) if isinstance(event, Refused)]
            if refused:
                raise BadInput("request", "one that the target serves", refused[0].why, "bench decoder")
            self.submissions += 1
        return len(requests)

    def steps(self, waiting: int) -> Iterator[int]:
        """Steps until `waiting` requests have ended; says after each step how many tokens the ended ones had."""
        idle = 0
        while waiting:
            events = self.target.step()
            idle = 0 if events else idle + 1
            assert idle < IDLE_STEPS_MAX, "nothing advances"
            ended = [event for event in events if isinstance(event, Finished)]
            waiting -= len(ended)
            yield sum(len(event.tokens) for event in ended)
