"""Departure: where a request's stream leaves its reference, and by how much.

Where the target shows logits, the measure is their largest difference; where it shows only tokens, *regret*: how far the
chosen token's reference logit lies below the best one, which is zero exactly when the token is the isolated greedy one.
Comparisons are written `not x <= bound`, because NaN passes `x > bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from oracle.reference import Reference
from targets.protocol import Request


@dataclass(frozen=True)
class Suspect:
    """A request beyond the rounding bound, at the first token that is.

    Attributes:
        position: Index into its answer.
        size: The logit difference there, or the regret.
        expected: The reference's greedy token, given the target's own tokens before it.
        actual: The target's token.
    """

    submission: int
    position: int
    size: float
    bound: float
    expected: int
    actual: int


def departures(
    requests: Sequence[Request], answers: Mapping[int, tuple[int, ...]], logits: torch.Tensor | None, reference: Reference
) -> Iterator[Suspect]:
    """The first token beyond the bound of each submission that has one, in the order of `answers`.

    All submissions are measured in one go: N tokens in a few tensor operations rather than in a few for each.

    Args:
        requests: By submission.
        answers: The tokens that some submissions were given, N in all.
        logits: The target's logits [N, V] behind these tokens, in the same order; None where it does not show them.
        reference: In the target's precision.
    """
    if not answers:
        return
    expected = torch.cat([reference.logits(requests[who].prompt, answer) for who, answer in answers.items()])
    differences = [0.0] * len(expected) if logits is None else _differences(logits, expected)  # [N]
    greedy = expected.argmax(dim=-1).tolist()
    start = 0
    for who, answer in answers.items():
        free = len(requests[who].forced)
        for position, token in enumerate(answer):
            index = start + position
            size, bound = differences[index], reference.bound
            if size <= bound and position >= free and token != greedy[index]:
                size, bound = _regret(expected[index], token), 2 * reference.bound  # either logit may be off by the bound
            if not size <= bound:
                yield Suspect(who, position, size, bound, greedy[index], token)
                break
        start += len(answer)


def _regret(expected: torch.Tensor, token: int) -> float:
    """How far a token's logit lies below the best one of [V]; zero for the greedy token, which is not asked about."""
    return float(expected.max() - expected[token])


def _differences(shown: torch.Tensor, expected: torch.Tensor) -> list[float]:
    """Largest absolute difference of each of N rows, [N, V] both; in double for half types, which would overflow."""
    if shown.dtype != torch.float64:
        shown, expected = shown.double(), expected.double()
    differences: list[float] = (shown - expected).abs().amax(dim=-1).tolist()
    return differences
