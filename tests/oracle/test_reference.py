"""The reference: what a request answers alone, by one cacheless forward, remembered."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from oracle import reference
from oracle.reference import Reference
from targets.models import logits_of
from targets.protocol import Request

PROMPT = (5, 17, 3, 200)


class Forwards:
    """Counts the forwards of a network, by a hook."""

    def __init__(self, network: nn.Module) -> None:
        self.count = 0
        self.handle = network.register_forward_hook(self.one)

    def one(self, *_: object) -> None:
        self.count += 1


@pytest.fixture
def forwards(network: nn.Module) -> Iterator[Forwards]:
    counted = Forwards(network)
    yield counted
    counted.handle.remove()


@torch.inference_mode()
def step_by_step(network: nn.Module, prompt: tuple[int, ...], new_tokens: int) -> tuple[tuple[int, ...], torch.Tensor]:
    """Greedy, one whole forward a token: the answer and its logits [n, V]."""
    answer: tuple[int, ...] = ()
    shown = []
    for _ in range(new_tokens):
        shown.append(logits_of(network(input_ids=torch.tensor([prompt + answer]), use_cache=False))[0, -1])
        answer = (*answer, int(shown[-1].argmax()))
    return answer, torch.stack(shown)


def test_one_forward_checks_what_step_by_step_greedy_says(network: nn.Module, forwards: Forwards) -> None:
    draw = random.Random(0)
    for _ in range(8):
        prompt = tuple(draw.choices(range(320), k=draw.randrange(1, 20)))
        answer, shown = step_by_step(network, prompt, 6)
        before = forwards.count
        logits = Reference(network).logits(prompt, answer)
        assert forwards.count == before + 1
        assert tuple(logits.argmax(-1).tolist()) == answer
        assert float((logits - shown).abs().max()) < 1e-12


def test_the_memory_serves_shorter_answers_without_a_forward(network: nn.Module, forwards: Forwards) -> None:
    asked = Reference(network)
    whole = asked.logits(PROMPT, (1, 2, 3, 4))
    assert forwards.count == 1
    for count in range(1, 5):
        assert torch.equal(asked.logits(PROMPT, (1, 2, 3, 4)[:count]), whole[:count])
    assert forwards.count == 1


def test_a_longer_answer_costs_one_forward_and_serves_all_shorter_ones(network: nn.Module, forwards: Forwards) -> None:
    asked = Reference(network)
    asked.logits(PROMPT, (1, 2))
    asked.logits(PROMPT, (1, 2, 3))
    assert forwards.count == 2
    asked.logits(PROMPT, (1, 2))
    asked.logits(PROMPT, (1, 2, 3))
    assert forwards.count == 2


def test_another_answer_to_the_same_prompt_is_never_served_from_memory(network: nn.Module) -> None:
    asked = Reference(network)
    asked.logits(PROMPT, (1, 2, 3))
    other = asked.logits(PROMPT, (1, 9, 3))
    assert torch.equal(other, Reference(network).logits(PROMPT, (1, 9, 3)))


def test_beyond_its_byte_limit_the_memory_forgets_what_was_asked_longest_ago(
    network: nn.Module, forwards: Forwards, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Reference(network)
    two_answers = 2 * asked.logits((1,), (1, 2)).nbytes
    monkeypatch.setattr(reference, "MEMORY_BYTES_MAX", two_answers)
    asked.logits((2,), (1, 2))
    asked.logits((1,), (1, 2))
    asked.logits((3,), (1, 2))
    assert forwards.count == 3
    asked.logits((1,), (1, 2))
    assert forwards.count == 3, "prompt 1 was asked more lately than prompt 2"
    asked.logits((2,), (1, 2))
    assert forwards.count == 4


def test_the_isolated_answer_ends_at_the_first_stop_token(network: nn.Module) -> None:
    answer, _ = step_by_step(network, PROMPT, 5)
    request = Request(prompt=PROMPT, max_new_tokens=5, stop=(answer[2],))
    assert Reference(network).greedy(request, 64) == answer[: answer.index(answer[2]) + 1]


def test_the_isolated_answer_ends_with_the_budget_and_with_the_context(network: nn.Module) -> None:
    answer, _ = step_by_step(network, PROMPT, 5)
    request = Request(prompt=PROMPT, max_new_tokens=5)
    assert Reference(network).greedy(request, 64) == answer
    assert Reference(network).greedy(request, len(PROMPT) + 3) == answer[:3]


def test_the_isolated_answer_repeats_forced_tokens_and_goes_on_from_them(network: nn.Module) -> None:
    request = Request(prompt=PROMPT, max_new_tokens=4, forced=(7, 8))
    continued, _ = step_by_step(network, (*PROMPT, 7, 8), 2)
    assert Reference(network).greedy(request, 64) == (7, 8, *continued)


class Told(nn.Module):
    """A network that is told how many tokens are the prompt, and says so in its logits."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool, prompt_tokens: int) -> torch.Tensor:
        return torch.full((1, input_ids.shape[1] - prompt_tokens + 1, 8), float(prompt_tokens))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter([nn.Parameter(torch.zeros(1))])


def test_a_network_that_asks_for_it_is_told_what_is_the_prompt() -> None:
    logits = Reference(Told()).logits((1, 2, 3), (4, 5))
    assert logits.tolist() == [[3.0] * 8] * 2
