"""Departure: where a request's stream leaves its reference, and by how much.

Where the target shows logits, the measure is their largest difference (whether the token was chosen rightly from them is
what echo asks); where it tells the log-probability of each token, how far that is from the reference's; where it shows only
tokens, *regret*: how far the chosen token's reference logit lies below the best one,
which is zero exactly when the token is the isolated greedy one. What is sampled has its regret under the scores that its own
parameters make of the reference logits.
Comparisons are written `not x <= bound`, because NaN passes `x > bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from oracle.reference import Reference
from oracle.sampling import choice, gain, is_judged, is_plain, scores
from targets.protocol import Control, Request


@dataclass(frozen=True)
class Suspect:
    """A request beyond the rounding bound, at the first token that is.

    Attributes:
        position: Index into its answer.
        size: The logit difference there, that of the token's log-probability, or the regret.
        expected: The token that the request is given alone, given the target's own tokens before it.
        actual: The target's token.
    """

    submission: int
    position: int
    size: float
    bound: float
    expected: int
    actual: int


def departures(
    requests: Sequence[Request],
    answers: Mapping[int, tuple[int, ...]],
    logits: torch.Tensor | None,
    reference: Reference,
    control: Control,
    told: Mapping[int, tuple[float | None, ...]] | None = None,
) -> Iterator[Suspect]:
    """The first token beyond the bound of each submission that has one, in the order of `answers`.

    All submissions are measured in one go: N tokens in a few tensor operations rather than in a few for each.

    Args:
        requests: By submission.
        answers: The tokens that some submissions were given, N in all.
        logits: The target's logits [N, V] behind these tokens, in the same order; None where it does not show them.
        reference: In the target's precision.
        control: What the target promises: a token that it does not fix has no regret.
        told: The log-probabilities that the target tells of its tokens, in the same way; None for a token without.
    """
    if not answers:
        return
    expected = torch.cat([reference.logits(requests[who].prompt, answer) for who, answer in answers.items()])
    differences = [0.0] * len(expected) if logits is None else _differences(logits, expected)  # [N]
    greedy = expected.argmax(dim=-1).tolist()
    start = 0
    for who, answer in answers.items():
        request, free = requests[who], len(requests[who].forced)
        regretted = logits is None and is_judged(request, control)
        for position, token in enumerate(answer):
            index = start + position
            size, bound = differences[index], reference.bound
            if regretted and position >= free and (token != greedy[index] or not is_plain(request)):
                size, bound = _regret(request, answer[:position], expected[index], token, reference.bound)
            likely = None if told is None or not is_plain(request) else told[who][position]
            if likely is not None and size <= bound:
                size, bound = _unlikeness(expected[index], token, likely), 2 * reference.bound
            if not size <= bound:
                yield Suspect(who, position, size, bound, choice(request, answer[:position], expected[index]), token)
                break
        start += len(answer)


def _unlikeness(expected: torch.Tensor, token: int, likely: float) -> float:
    """How far the log-probability told of a token is from the one under reference logits [V].

    Logits that are off by so much each move it by up to twice that.
    """
    return abs(likely - float(expected.double().log_softmax(-1)[token]))


def _regret(
    request: Request, answer: tuple[int, ...], expected: torch.Tensor, token: int, bound: float
) -> tuple[float, float]:
    """A token's regret under reference logits [V], and what rounding explains of it: either may be off by the bound."""
    if is_plain(request):
        return float(expected.max() - expected[token]), 2 * bound
    given = scores(request, answer, expected)
    return given.regret(token), 2 * bound * gain(request) + given.rounding(token)


def _differences(shown: torch.Tensor, expected: torch.Tensor) -> list[float]:
    """Largest absolute difference of each of N rows, [N, V] both; in double for half types, which would overflow."""
    if shown.dtype != torch.float64:
        shown, expected = shown.double(), expected.double()
    differences: list[float] = (shown - expected).abs().amax(dim=-1).tolist()
    return differences
