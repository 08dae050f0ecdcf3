"""Sampler: from logits to tokens, each row by the parameters of its own request (`targets.protocol.Sampling`).

State is by row, in the order of `Batch`: a request joins behind the last row, and when one leaves, the last row moves into
the gap, its state with it; rows behind the last one are clean. What a row's state says follows from its prompt and its
answer so far, so that a request which left and joins again goes on as if it had stayed.

Rows that want no more than the largest logit are never touched: while there are no others, choosing is one argmax. The
others are chosen in float64, by operations that treat each row alone, so that a batch changes no bit of a choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from targets.protocol import GREEDY, Request, Sampling

NOISE_STRIDE = 1_000_003
"""The noise of the i-th token is seeded with `seed * NOISE_STRIDE + i`."""


@dataclass(slots=True)
class Asked:
    """What one row's request asks for, and how long its answer is.

    Attributes:
        apart: Whether it may take another token than that of the largest logit.
    """

    submission: int
    request: Request
    length: int
    apart: bool


class Slabs:
    """Row state over the vocabulary, [S, V] each.

    Attributes:
        counts: float64, how often each id stands in the answer.
        prompts: bool, the ids of the prompt.
        bias: float64, what is added to each logit.
        barred: bool, the ids that are not among the allowed ones.
        ends: bool, the stop ids.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        shape = (rows, vocabulary)
        with torch.inference_mode(False):  # made in a step, they are written outside of one as well: by a cancel
            self.counts = torch.zeros(shape, dtype=torch.float64, device=device)
            self.prompts = torch.zeros(shape, dtype=torch.bool, device=device)
            self.bias = torch.zeros(shape, dtype=torch.float64, device=device)
            self.barred = torch.zeros(shape, dtype=torch.bool, device=device)
            self.ends = torch.zeros(shape, dtype=torch.bool, device=device)

    def move(self, source: int, target: int) -> None:
        """A row's state goes to another row; what stood there is lost."""
        for slab in self.all():
            slab[target] = slab[source]

    def clear(self, row: int) -> None:
        """Nothing of a request is left in a row."""
        for slab in self.all():
            slab[row] = 0

    def all(self) -> tuple[torch.Tensor, ...]:
        """Every slab."""
        return self.counts, self.prompts, self.bias, self.barred, self.ends


def largest(logits: torch.Tensor) -> torch.Tensor:
    """The first id of the largest logit of each row, int64 [B]; NaN counts as the largest.

    On a CPU by way of numpy, which takes 26 µs where torch takes 290 for eight rows of 32,000: 3% of a step of 50M weights.
    """
    if logits.is_cpu and logits.dtype != torch.bfloat16:  # which numpy lacks
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


class Sampler:
    """Chooses tokens, and remembers what each row's choice depends on.

    Attributes:
        rows: Who is in each row.
        slabs: None until somebody comes whose choice needs them.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.rows_max = rows
        self.vocabulary = vocabulary
        self.device = device
        self.rows: list[Asked] = []
        self.slabs: Slabs | None = None
        self.generator = torch.Generator()

    def refusal(self, request: Request) -> str | None:
        """Why a request's parameters can never be honoured, or None."""
        sampling = request.sampling
        if sampling == GREEDY:
            return None
        biased = [token for token, _ in sampling.bias]
        numbers = (sampling.temperature, sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        if not all(map(math.isfinite, (*numbers, *(by for _, by in sampling.bias)))):
            return "sampling parameter not finite"
        if sampling.temperature < 0:
            return "temperature below zero"
        if sampling.repetition_penalty <= 0:
            return "repetition penalty not above zero"
        if max((*biased, *sampling.allowed), default=0) >= self.vocabulary:
            return "token id past the vocabulary"
        if len(set(biased)) < len(biased):
            return "two biases on one id"
        if sampling.min_new_tokens and not set(sampling.allowed or range(self.vocabulary)) - set(request.stop):
            return "no id may be chosen"
        return None

    def join(self, submission: int, request: Request, answer: Sequence[int]) -> None:
        """A request takes the row behind the last one; `answer` is what it was given before, if it comes again."""
        self.rows.append(Asked(submission, request, len(answer), is_apart(request)))
        if self.rows[-1].apart:
            if self.slabs is None:
                self.slabs = Slabs(self.rows_max, self.vocabulary, self.device)
            self.fill(len(self.rows) - 1, self.slabs, request, answer)

    def fill(self, row: int, slabs: Slabs, request: Request, answer: Sequence[int]) -> None:
        """Writes a request's state to its clean row."""
        sampling = request.sampling
        slabs.prompts[row, list(request.prompt)] = True
        if answer:
            ids = torch.tensor(answer, device=self.device)
            slabs.counts[row] = torch.bincount(ids, minlength=self.vocabulary)
        if sampling.bias:
            ids_, added = zip(*sampling.bias, strict=True)
            slabs.bias[row, list(ids_)] = torch.tensor(added, dtype=torch.float64, device=self.device)
        if sampling.allowed:
            slabs.barred[row] = True
            slabs.barred[row, list(sampling.allowed)] = False
        if sampling.min_new_tokens:
            slabs.ends[row, [token for token in request.stop if token < self.vocabulary]] = True

    def leave(self, submission: int) -> None:
        """A request goes; the last row closes the gap and is left clean."""
        row, last = self.row_of(submission), len(self.rows) - 1
        if self.slabs is not None:
            if row != last:
                self.slabs.move(last, row)
            self.slabs.clear(last)
        self.rows[row] = self.rows[last]
        self.rows.pop()

    def row_of(self, submission: int) -> int:
        """Where a request stands."""
        return next(row for row, asked in enumerate(self.rows) if asked.submission == submission)

    def choose(self, submissions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The token of each of B requests, int64 [B], from their logits [B, V], which stay as they are."""
        chosen = largest(logits)
        if any(asked.apart for asked in self.rows):
            rows = list(map(self.row_of, submissions))
            apart = [index for index, row in enumerate(rows) if self.rows[row].apart]
            if apart:
                chosen[apart] = self.scores(logits[apart].double(), [rows[index] for index in apart]).argmax(-1)
        return chosen

    # A row for which a stage means nothing goes through it unchanged, bit for bit: by 1 and 0.

    def scores(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """What R rows' choices are the largest of: float64 [R, V], from their logits in float64."""
        return self.drawn(self.restricted(self.biased(self.penalised(logits, rows), rows), rows), rows)

    def penalised(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """With what was seen and said already made less likely, or more."""
        asked, counts, prompts = self.asked(rows), self.state.counts, self.state.prompts
        if any(sampling.repetition_penalty != 1 for sampling in asked):
            factor = self.column([sampling.repetition_penalty for sampling in asked])
            changed = torch.where(scores < 0, scores * factor, scores / factor)
            scores = torch.where(prompts[rows] | (counts[rows] > 0), changed, scores)
        if any(sampling.presence_penalty for sampling in asked):
            scores = scores - self.column([sampling.presence_penalty for sampling in asked]) * (counts[rows] > 0)
        if any(sampling.frequency_penalty for sampling in asked):
            scores = scores - self.column([sampling.frequency_penalty for sampling in asked]) * counts[rows]
        return scores

    def biased(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """With each row's bias."""
        return scores + self.state.bias[rows] if any(sampling.bias for sampling in self.asked(rows)) else scores

    def restricted(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """With the ids out of reach that may not be chosen, or not yet."""
        if any(sampling.allowed for sampling in self.asked(rows)):
            scores = scores.masked_fill(self.state.barred[rows], -math.inf)
        early = [self.rows[row].length < self.rows[row].request.sampling.min_new_tokens for row in rows]
        if any(early):
            barred = self.state.ends[rows] & torch.tensor(early, device=self.device)[:, None]
            scores = scores.masked_fill(barred, -math.inf)
        return scores

    def drawn(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """With each row's noise, where it has a temperature."""
        temperatures = [sampling.temperature for sampling in self.asked(rows)]
        if any(temperatures):
            scores = scores / self.column([temperature or 1.0 for temperature in temperatures])
            for index, row in enumerate(rows):
                if temperatures[index]:
                    scores[index] += self.noise(row).to(self.device)
        return scores

    def asked(self, rows: list[int]) -> list[Sampling]:
        """The parameters of these rows."""
        return [self.rows[row].request.sampling for row in rows]

    @property
    def state(self) -> Slabs:
        """The slabs, where somebody is chosen apart."""
        assert self.slabs is not None, "a row that is chosen apart has state"
        return self.slabs

    def column(self, values: list[float]) -> torch.Tensor:
        """One number a row, float64 [R, 1]."""
        return torch.tensor(values, dtype=torch.float64, device=self.device)[:, None]

    def noise(self, row: int) -> torch.Tensor:
        """Gumbel noise float64 [V], on the host, for a row's next token."""
        asked = self.rows[row]
        self.generator.manual_seed(asked.request.sampling.seed * NOISE_STRIDE + asked.length)
        even = torch.rand(self.vocabulary, dtype=torch.float64, generator=self.generator)
        return -(-even.log()).log()

    def accept(self, submission: int, token: int) -> None:
        """A token, chosen or forced, was added to a request's answer."""
        if self.slabs is None:
            return
        row = self.row_of(submission)
        asked = self.rows[row]
        asked.length += 1
        if asked.apart:
            self.slabs.counts[row, token] += 1

    def logprobs(self, submission: int, token: int, logits: torch.Tensor) -> tuple[tuple[int, float], ...]:
        """What a request is told of a token that came from these logits [V]; nothing unless it asked."""
        count = self.rows[self.row_of(submission)].request.sampling.logprobs
        if not count:
            return ()
        told = logits.double().log_softmax(-1)
        likeliest, ids = told.sort(descending=True, stable=True)
        return (
            (token, float(told[token])),
            *zip(ids[:count].tolist(), likeliest[:count].tolist(), strict=True),
        )


def is_apart(request: Request) -> bool:
    """Whether a request may take another token than that of the largest logit."""
    sampling = request.sampling
    return bool(
        sampling.temperature
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.bias
        or sampling.allowed
        or (sampling.min_new_tokens and request.stop)
    )


def stops(request: Request, answer: Sequence[int]) -> bool:
    """Whether an answer ends with its last token: a stop id, or the last of a sequence, behind `min_new_tokens` others."""
    if len(answer) <= request.sampling.min_new_tokens:
        return False
    if answer[-1] in request.stop:
        return True
    return any(sequence and tuple(answer[-len(sequence) :]) == sequence for sequence in request.stop_sequences)
