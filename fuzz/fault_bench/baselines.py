"""Baselines: other ways to make up schedules. Frozen: whatever becomes of ours, these stay as they are.

Nothing here uses `fuzz.strategies` but the space that a target gives. Each takes a space and a seed and never ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fuzz.strategies import Space
from targets.protocol import Cancel, Op, Request, Sampling, Schedule, Setting, Step, Submit, Wait

PROMPT_MAX, ANSWER_MAX, REQUESTS_MAX = 64, 24, 8
MACHINE_STEPS, MACHINE_EXAMPLES = 30, 100
"""Rules a run, and runs a round, of the state machine: Hypothesis' own defaults are 50 and 100."""


def uniform(space: Space, seed: int) -> Iterator[Schedule]:
    """Everything that a schedule can say, drawn evenly: knobs, lengths, extras, and the order of ops.

    The thousand seeded interleavings that one writes by hand, with nothing in them that knows where bugs live.
    """
    dice = random.Random(f"uniform {seed}")
    while True:
        settings: dict[str, Setting] = {
            knob.name: value for knob in space.knobs if knob.drawn and (value := dice.choice(knob.values)) != knob.default
        }
        left = [_request(dice, space, extras=True) for _ in range(dice.randint(2, REQUESTS_MAX))]
        ops: list[Op] = []
        submitted = 0
        while left:
            chance = dice.random()
            if chance < 0.4 or not submitted:
                ops.append(Submit(left.pop()))
                submitted += 1
            elif chance < 0.8:
                ops.append(Step(dice.randint(1, 4)))
            elif chance < 0.9:
                ops.append(Cancel(dice.randrange(submitted)))
            else:
                ops.append(Wait(dice.randrange(submitted), dice.randint(1, 4)))
        yield Schedule(ops=tuple(ops), settings=settings)


def all_at_once(space: Space, seed: int) -> Iterator[Schedule]:
    """A batch of prompts of random lengths, handed in together and drained: what engines' own tests do."""
    dice = random.Random(f"all at once {seed}")
    while True:
        requests = [_request(dice, space) for _ in range(dice.randint(2, REQUESTS_MAX))]
        yield Schedule(ops=tuple(map(Submit, requests)))


def fixed_shapes(space: Space, seed: int) -> Iterator[Schedule]:
    """Seeded sequences of eight kinds of event, with fixed sizes, default settings and no cancel: as the nearest rival does.

    A short prompt, a long one, the last prompt again, its first half with another end; one step, four, as many as a short
    answer takes, and as many as empty the machine.
    """
    dice = random.Random(f"fixed shapes {seed}")
    while True:
        ops: list[Op] = [Submit(_plain(dice, space, 8, 8))]
        last = ops[0].request if isinstance(ops[0], Submit) else None
        for _ in range(16):
            event = dice.randrange(8)
            if event < 4 and last is not None:
                half = last.prompt[: len(last.prompt) // 2]
                last = (
                    _plain(dice, space, 8, 8),
                    _plain(dice, space, 48, 16),
                    last,
                    Request(prompt=half + _plain(dice, space, 8, 8).prompt, max_new_tokens=8),
                )[event]
                ops.append(Submit(last))
            else:
                ops.append(Step((1, 4, 8, 32)[event % 4]))
        yield Schedule(ops=tuple(ops))


def state_machine(space: Space, seed: int) -> Iterator[Schedule]:
    """A plain rule-based state machine of Hypothesis: submit, step, cancel, lengths and ids as it likes to draw them."""
    made: list[Schedule] = []
    ids = st.sampled_from(space.ordinary_ids)

    class Machine(RuleBasedStateMachine):
        """Writes down what is asked; a target is played with it afterwards."""

        def __init__(self) -> None:
            super().__init__()
            self.ops: list[Op] = []
            self.submitted = 0

        @rule(prompt=st.lists(ids, min_size=1, max_size=PROMPT_MAX), new=st.integers(1, ANSWER_MAX))
        def submit(self, prompt: Sequence[int], new: int) -> None:
            self.ops.append(Submit(Request(prompt=tuple(prompt), max_new_tokens=new)))
            self.submitted += 1

        @rule(count=st.integers(1, 8))
        def step(self, count: int) -> None:
            self.ops.append(Step(count))

        @precondition(lambda self: self.submitted)
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            self.ops.append(Cancel(data.draw(st.integers(0, self.submitted - 1))))

        def teardown(self) -> None:
            if self.submitted:
                made.append(Schedule(ops=tuple(self.ops)))

    once = hypothesis.settings(
        max_examples=MACHINE_EXAMPLES,
        stateful_step_count=MACHINE_STEPS,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    round_ = 0
    while True:
        run_state_machine_as_test(hypothesis.seed(seed * 1_000_003 + round_)(Machine), settings=once, _min_steps=1)
        yield from made
        made.clear()
        round_ += 1


def _plain(dice: random.Random, space: Space, length: int, new: int) -> Request:
    return Request(prompt=tuple(dice.choices(space.ordinary_ids, k=length)), max_new_tokens=new)


def _request(dice: random.Random, space: Space, extras: bool = False) -> Request:
    """A request of even lengths; with extras, each that there is for one request in eight."""
    prompt = tuple(dice.choices(space.ordinary_ids, k=dice.randint(1, PROMPT_MAX)))

    def now_and_then() -> bool:
        return extras and dice.random() < 1 / 8

    sampling = Sampling()
    if space.sampling and now_and_then():
        sampling = Sampling(
            temperature=dice.uniform(0, 2),
            seed=dice.randrange(1000),
            repetition_penalty=dice.uniform(0.5, 2),
            presence_penalty=dice.uniform(-2, 2),
            frequency_penalty=dice.uniform(-2, 2),
            bias=((dice.choice(space.ordinary_ids), dice.uniform(-10, 10)),),
            min_new_tokens=dice.randrange(4),
            logprobs=dice.randrange(4),
        )
    return Request(
        prompt=prompt,
        max_new_tokens=dice.randint(1, ANSWER_MAX),
        stop=tuple(sorted(set(dice.choices(space.ordinary_ids, k=8)))) if now_and_then() else (),
        deadline_s=dice.randint(1, 16) if now_and_then() else None,
        client_id=dice.randrange(3) if now_and_then() else None,
        salt=dice.randrange(2) if space.salts and now_and_then() else None,
        sampling=sampling,
    )
