"""Sampling: which token a request's own parameters choose from given logits (`targets.protocol.Sampling`).

Code of the oracle's own: transformers' logits processors where there are any for a stage, a few lines where there are none.
All in float64, so that given the logits two honest choices differ by rounding only, which is bounded here, stage by stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from targets.protocol import Control, Request

_ROUNDINGS = 4
"""Each of at most eight operations on a score is off by half a unit in the last place of what went into it."""


@dataclass(frozen=True)
class Scores:
    """What the chosen token is the largest of.

    Attributes:
        values: float64 [V].
        magnitudes: float64 [V], what went into each, every term taken as positive: the scale of its rounding.
    """

    values: torch.Tensor
    magnitudes: torch.Tensor

    @property
    def choice(self) -> int:
        """The first of the largest."""
        return int(self.values.argmax())

    def regret(self, token: int) -> float:
        """How far a token lies below the choice; zero for every one of the largest, and where nothing may be chosen."""
        best, mine = float(self.values.max()), float(self.values[token])
        return 0.0 if best in (mine, -math.inf) or math.isnan(best) else best - mine

    def rounding(self, token: int) -> float:
        """How much of a token's regret another order of the same operations can make."""
        scale = float(self.magnitudes[token] + self.magnitudes[self.choice])
        return _ROUNDINGS * torch.finfo(torch.float64).eps * scale


def is_plain(request: Request) -> bool:
    """Whether a request takes the largest logit whatever it has been given so far."""
    asked = request.sampling
    penalties = (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty)
    barred = asked.allowed or (asked.min_new_tokens and request.stop)
    return not asked.temperature and penalties == (1, 0, 0) and not asked.bias and not barred


def is_judged(request: Request, control: Control) -> bool:
    """Whether a target's promises fix the token that a request is given, given its logits."""
    asked = request.sampling
    if is_plain(request):
        return True
    means_something = asked.repetition_penalty > 0 and asked.temperature >= 0  # a target should have refused it
    return control.sampling and means_something and (control.noise or not asked.temperature)


def scores(request: Request, answer: Sequence[int], logits: torch.Tensor, index: int | None = None) -> Scores:
    """The scores behind the next token.

    Args:
        answer: The request's tokens before it.
        logits: [V], of any dtype.
        index: Which token's noise it is, where that is not what the answer's length says.
    """
    asked, processors = request.sampling, _processors()
    values = logits.double()
    magnitudes = torch.zeros_like(values) if is_plain(request) else values.abs()  # nothing is done to it, so it is exact
    ids = torch.tensor([[*request.prompt, *answer]], dtype=torch.int64, device=values.device)
    if asked.repetition_penalty != 1:
        values = processors.RepetitionPenaltyLogitsProcessor(float(asked.repetition_penalty))(ids, values[None])[0]
        magnitudes = magnitudes * max(asked.repetition_penalty, 1 / asked.repetition_penalty)
    if asked.presence_penalty or asked.frequency_penalty:  # transformers has neither
        counts = torch.zeros_like(values)
        for token in answer:
            counts[token] += 1
        values = values - asked.presence_penalty * counts.clamp(max=1) - asked.frequency_penalty * counts
        magnitudes = magnitudes + abs(asked.presence_penalty) + abs(asked.frequency_penalty) * counts
    if asked.bias:  # transformers' SequenceBias rounds to float32
        bias = torch.zeros_like(values)
        for token, added in asked.bias:
            if token < len(bias):  # a target should have refused it
                bias[token] += added
        values, magnitudes = values + bias, magnitudes + bias.abs()
    if asked.allowed:
        others = sorted(set(range(len(values))) - set(asked.allowed))
        values = processors.SuppressTokensLogitsProcessor(others)(ids, values[None])[0]
    if asked.min_new_tokens and request.stop:
        early = processors.MinNewTokensLengthLogitsProcessor(
            len(request.prompt), asked.min_new_tokens, list(request.stop), device=str(values.device)
        )
        values = early(ids, values[None])[0]
    if asked.temperature:
        values = processors.TemperatureLogitsWarper(float(asked.temperature))(ids, values[None])[0]
        noise = gumbel(asked.seed, len(answer) if index is None else index, len(values)).to(values.device)
        values, magnitudes = values + noise, magnitudes / asked.temperature + noise.abs() + 1
    return Scores(values, magnitudes)


def gumbel(seed: int, index: int, vocabulary: int) -> torch.Tensor:
    """The noise float64 [V] of the token with this index in an answer."""
    chance = torch.Generator().manual_seed(seed * 1_000_003 + index)
    return torch.rand(vocabulary, dtype=torch.float64, generator=chance).log().neg().log().neg()


def gain(request: Request) -> float:
    """By how much more than a logit a score can be off."""
    asked = request.sampling
    penalty = max(asked.repetition_penalty, 1 / asked.repetition_penalty)
    return penalty / (asked.temperature or 1.0)


def choice(request: Request, answer: Sequence[int], logits: torch.Tensor) -> int:
    """The next token, from logits [V]."""
    return int(logits.argmax()) if is_plain(request) else scores(request, answer, logits).choice


def is_stopped(request: Request, answer: Sequence[int], honoured: bool = True) -> bool:
    """Whether an answer ends with its last token: a stop id or the end of a stop sequence, behind `min_new_tokens` others.

    Args:
        honoured: Whether the target knows of more than stop ids.
    """
    if not answer:
        return False
    ends_by_id = answer[-1] in request.stop
    if not honoured:
        return ends_by_id
    whole = tuple(answer)
    ends_by_sequence = any(sequence == whole[-len(sequence) :] for sequence in request.stop_sequences if sequence)
    return len(whole) > request.sampling.min_new_tokens and (ends_by_id or ends_by_sequence)


@cache
def _processors() -> Any:
    """Imported where a request samples: most runs never do, and it takes half a second."""
    from transformers.generation import logits_process

    return logits_process
