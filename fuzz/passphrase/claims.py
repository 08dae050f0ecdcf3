"""Claims: what was said of prefixes, and whether it holds of this model. Data in, sentences out: nothing is measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import mean

import msgspec

from fuzz.passphrase.prefix import Drift, Look
from fuzz.passphrase.texts import KINDS

ONE_TOKEN_MAX = 0.5
"""Share of a task's answer that one token in front of it may change; beyond that the model heeds anything."""
SHORT = (4, 16)
SINGLE_DIGIT = 10
_TRACE_NATS = 1e-6


class Claim(msgspec.Struct, frozen=True):
    """One claim.

    Attributes:
        holds: None where it could not be told from these lengths.
    """

    says: str
    measured: str
    holds: bool | None


def is_deaf_to_meaning(drifts: Sequence[Drift], new_tokens: int) -> bool:
    """Whether one token in front of a task changes so much that longer texts can't be told from it."""
    ones = [drift.mean for drift in drifts if drift.length == 1]
    return bool(ones) and mean(ones) > ONE_TOKEN_MAX * new_tokens


def by_length(drifts: Sequence[Drift], kind: str) -> dict[int, float]:
    """Mean edit distance of one kind, over tasks and contents, by length."""
    lengths = dict.fromkeys(drift.length for drift in drifts)
    return {length: mean(each.mean for each in drifts if (each.kind, each.length) == (kind, length)) for length in lengths}


def of_answers(drifts: Sequence[Drift], new_tokens: int) -> list[Claim]:
    """What is claimed of answers, which had so many tokens: of a shorter one every distance has a single digit."""
    neutral, instruction = by_length(drifts, "neutral"), by_length(drifts, "instruction")
    worst = max(neutral, key=lambda length: neutral[length])
    long = [length for length in neutral if length >= 32] or list(neutral)
    a_b, a_c = mean(neutral[length] for length in long), mean(instruction[length] for length in long)
    return [
        Claim(
            "a neutral text moves the answer by a single-digit edit distance",
            f"at most {neutral[worst]:.1f} tokens in the mean, behind {worst}",
            neutral[worst] < SINGLE_DIGIT if new_tokens >= SINGLE_DIGIT else None,
        ),
        Claim(
            "an instruction moves it farther than a neutral text",
            f"{a_c:.1f} against {a_b:.1f} tokens, behind {min(long)} or more",
            a_c > a_b,
        ),
        _jump(instruction),
        _short(drifts),
    ]


def _jump(means: dict[int, float]) -> Claim:
    says = "between 64 and 128 tokens there is a jump, and then it is flat"
    wanted = [length for length in means if 32 <= length <= 256]
    if not {32, 64, 128, 256} <= set(wanted):
        return Claim(says, "asks for lengths 32, 64, 128 and 256", None)
    rises = {f"{first} to {second}": means[second] - means[first] for first, second in ((32, 64), (64, 128), (128, 256))}
    steps = list(itertools.pairwise(wanted))
    first, second = max(steps, key=lambda step: (means[step[1]] - means[step[0]]) / (step[1] - step[0]))
    told = ", ".join(f"{means_of} {rise:+.1f}" for means_of, rise in rises.items())
    jumps = rises["64 to 128"] > max(rises["32 to 64"], 0) and abs(rises["128 to 256"]) < rises["64 to 128"] / 2
    return Claim(says, f"{told}; steepest from {first} to {second}", jumps)


def _short(drifts: Sequence[Drift]) -> Claim:
    says = "behind a short text (4 to 16 tokens) it depends on the text how far"
    short = [drift for drift in drifts if SHORT[0] <= drift.length <= SHORT[1]]
    texts = {(drift.kind, drift.content) for drift in short}
    if len(texts) < 2:
        return Claim(says, "asks for lengths 4 to 16 and several texts", None)
    spreads = {}
    for length in dict.fromkeys(drift.length for drift in short):
        means = [drift.mean for drift in short if drift.length == length]
        spreads[length] = max(means) - min(means)
    widest = max(spreads, key=lambda length: spreads[length])
    means = [drift.mean for drift in short if drift.length == widest]
    return Claim(says, f"behind {widest} tokens {min(means):.1f} to {max(means):.1f}", spreads[widest] >= 0.5 * mean(means))


def of_attention(looks: Sequence[Look]) -> list[Claim]:
    """What is claimed of attention."""
    longest = max(look.length for look in looks)
    at = [look for look in looks if look.length == longest]
    layers = [mean(mean(look.kl[layer]) for look in at) for layer in range(len(at[0].kl))]
    heads = [mean(look.kl[layer][head] for look in at) for layer, row in enumerate(at[0].kl) for head in range(len(row))]
    most = layers.index(max(layers))
    third = max(1, len(layers) // 3)
    early, middle, late = mean(layers[:third]), mean(layers[third:-third] or layers), mean(layers[-third:])
    traced = sum(kl > _TRACE_NATS for kl in heads)
    shift = mean(mean(row) for look in at for row in look.shift)
    mass = {kind: mean(mean(row) for look in at if look.kind == kind for row in look.mass) for kind in KINDS}
    return [
        Claim(
            "attention departs little in early layers, most in the middle, little at the end",
            f"{early:.3f}, {middle:.3f}, {late:.3f} nats by thirds; most in layer {most} of {len(layers)}",
            middle > max(early, late) if len(layers) >= 3 else None,
        ),
        Claim(
            "every head carries the trace, unlike in strength",
            f"{traced} of {len(heads)} heads; {min(heads):.2g} to {max(heads):.2g} nats",
            traced == len(heads) and max(heads) > 2 * min(heads),
        ),
        Claim(
            "it is there before the softmax already",
            f"logits over the task's own keys move by {shift:.3f} against each other",
            shift > 1e-3,
        ),
        Claim(
            "an instruction draws more of the attention than a neutral text",
            f"{mass['instruction']:.1%} against {mass['neutral']:.1%} of the mass, behind {longest} tokens",
            mass["instruction"] > mass["neutral"],
        ),
    ]
