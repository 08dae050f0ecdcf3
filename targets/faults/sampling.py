"""Faults of sampling: a row's parameters, or what was counted for it, reach another row or another step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from targets.decoder import Sampler
from targets.faults.bank import Fault, Probe, at_once, one_after_another, schedule
from targets.protocol import CheckName, Kind, Request, Sampling, Step, Submit


class AllApartSampler(Sampler):
    """Once somebody's choice takes more than the largest logit, everybody's goes the same way, as in most engines."""

    def choose(self, submissions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if self.slabs is not None:
            for asked in self.rows:
                asked.apart = True
        return super().choose(submissions, logits)


class LeftBehindSampler(AllApartSampler):
    """Bias and allowed ids move down with their row, and the row they leave keeps them too. The twin clears that row."""

    state_left_behind: Probe

    def leave(self, submission: int) -> None:
        row, last = self.row_of(submission), len(self.rows) - 1
        moved = self.slabs is not None and row != last
        left = [slab[last].clone() for slab in (self.state.barred, self.state.bias)] if moved else []
        super().leave(submission)
        if left:
            self.state_left_behind.reach()
            if not self.state_left_behind.honest:
                self.state_left_behind.change(any(bool(state.any()) for state in left))
                self.state.barred[last], self.state.bias[last] = left

    def biased(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return scores + self.state.bias[rows]

    def restricted(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return super().restricted(scores, rows).masked_fill(self.state.barred[rows], -math.inf)


class KeptMaskSampler(AllApartSampler):
    """The mask of allowed ids is made once, and written only for rows that have one. The twin clears it with the row."""

    mask_kept: Probe

    def leave(self, submission: int) -> None:
        row = self.row_of(submission)
        mask = None if self.slabs is None else self.slabs.barred[row].clone()
        super().leave(submission)
        if mask is not None:
            self.mask_kept.reach()
            if not self.mask_kept.honest and row == len(self.rows):
                self.mask_kept.change(bool(mask.any()))
                self.state.barred[row] = mask

    def restricted(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return super().restricted(scores, rows).masked_fill(self.state.barred[rows], -math.inf)


class ZeroMaskSampler(AllApartSampler):
    """The masks of some rows are widened to the batch with "nothing allowed" for the others. The twin fills up with all."""

    mask_filled_with_nothing: Probe

    def restricted(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        scores, probe = super().restricted(scores, rows), self.mask_filled_with_nothing
        without = [not sampling.allowed for sampling in self.asked(rows)]
        if all(without):
            return scores
        probe.reach()
        if not probe.honest:
            probe.change(any(without))
            scores[without] = -math.inf
        return scores


class FirstPenaltySampler(AllApartSampler):
    """Penalties are gathered from the first row that has one on, and handed out from the first row on.

    The twin gathers them from all rows.
    """

    penalties_from_the_first: Probe

    def penalised(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        probe = self.penalties_from_the_first
        probe.reach()
        has = [sampling.repetition_penalty != 1 for sampling in self.asked(rows)]
        skipped = has.index(True) if any(has) and not probe.honest else 0
        probe.change(bool(skipped))
        if not skipped:
            return super().penalised(scores, rows)
        factors = [sampling.repetition_penalty for sampling in self.asked(rows)]
        factor = self.column(factors[skipped:] + [1.0] * skipped)
        changed = torch.where(scores < 0, scores * factor, scores / factor)
        return torch.where(self.state.prompts[rows] | (self.state.counts[rows] > 0), changed, scores)

    def join(self, submission: int, request: Request, answer: Sequence[int]) -> None:
        super().join(submission, request, answer)
        if self.slabs is not None:
            for row, asked in enumerate(self.rows):  # who came before there were slabs has its prompt in them as well
                self.slabs.prompts[row, list(asked.request.prompt)] = True


class KeptCountsSampler(Sampler):
    """What was counted for a row's last request counts for its next one. The twin starts from nothing."""

    counts_kept: Probe

    def leave(self, submission: int) -> None:
        row = self.row_of(submission)
        counts = None if self.slabs is None else self.slabs.counts[row].clone()
        super().leave(submission)
        if counts is not None:
            self.counts_kept.reach()
            if not self.counts_kept.honest and row == len(self.rows):
                self.counts_kept.change(bool(counts.any()))
                self.state.counts[row] = counts

    def fill(self, row: int, slabs: object, request: Request, answer: Sequence[int]) -> None:
        kept = self.state.counts[row].clone()
        super().fill(row, self.state, request, answer)
        self.state.counts[row] += kept


class LateCountsSampler(Sampler):
    """Penalties lag one token behind, because the last one is not known yet. The twin waits for it."""

    counts_late: Probe

    def accept(self, submission: int, token: int) -> None:
        super().accept(submission, token)
        probe, late = self.counts_late, self._late()
        if self.slabs is None or not self.rows[self.row_of(submission)].apart:
            return
        probe.reach()
        if not probe.honest:
            probe.change()
            counts = self.slabs.counts[self.row_of(submission)]
            counts[token] -= 1
            if submission in late:
                counts[late[submission]] += 1
            late[submission] = token

    def _late(self) -> dict[int, int]:
        """The last token of each request."""
        late: dict[int, int] = self.__dict__.setdefault("late_tokens", {})
        return late


class LastTokenSampler(Sampler):
    """The repetition penalty is given the last token in place of all of them. The twin gives it all."""

    penalty_of_the_last: Probe

    def penalised(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        probe = self.penalty_of_the_last
        probe.reach()
        if probe.honest:
            return super().penalised(scores, rows)
        slabs = self.state
        prompts, counts = slabs.prompts.clone(), slabs.counts.clone()
        for row in rows:
            asked = self.rows[row]
            last = asked.request.prompt[-1] if not asked.length else self._last()[asked.submission]
            slabs.prompts[row] = False
            slabs.counts[row] = 0
            slabs.prompts[row, last] = True
        probe.change(not torch.equal(slabs.prompts, prompts) or not torch.equal(slabs.counts, counts))
        scores = super().penalised(scores, rows)
        slabs.prompts.copy_(prompts)
        slabs.counts.copy_(counts)
        return scores

    def accept(self, submission: int, token: int) -> None:
        self._last()[submission] = token
        super().accept(submission, token)

    def _last(self) -> dict[int, int]:
        """The last token of each request."""
        last: dict[int, int] = self.__dict__.setdefault("last_tokens", {})
        return last


class StepNoiseSampler(Sampler):
    """Noise is keyed on the step that the whole batch is at. The twin keys it on each request's own tokens."""

    noise_by_step: Probe

    def choose(self, submissions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        self.__dict__["steps"] = self.__dict__.get("steps", -1) + 1
        return super().choose(submissions, logits)

    def noise(self, row: int) -> torch.Tensor:
        probe, asked = self.noise_by_step, self.rows[row]
        probe.reach()
        if probe.honest:
            return super().noise(row)
        own, asked.length = asked.length, self.__dict__["steps"]
        probe.change(asked.length != own)
        noise = super().noise(row)
        asked.length = own
        return noise


class FirstTemperatureSampler(Sampler):
    """The first sampled row's temperature is everybody's. The twin gives each its own."""

    first_temperature: Probe

    def asked(self, rows: list[int]) -> list[Sampling]:
        asked, probe = super().asked(rows), self.first_temperature
        sampled = [sampling.temperature for sampling in asked if sampling.temperature]
        if len(sampled) < 2:
            return asked
        probe.reach()
        if probe.honest:
            return asked
        probe.change(len(set(sampled)) > 1)
        return [
            msgspec.structs.replace(sampling, temperature=sampled[0]) if sampling.temperature else sampling
            for sampling in asked
        ]


class FirstLogprobsSampler(Sampler):
    """Log-probabilities are told of the batch's first row. The twin tells each of its own."""

    logprobs_of_the_first: Probe

    def choose(self, submissions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        self.__dict__["first_row"] = logits[0]
        return super().choose(submissions, logits)

    def logprobs(self, submission: int, token: int, logits: torch.Tensor) -> tuple[tuple[int, float], ...]:
        probe, first = self.logprobs_of_the_first, self.__dict__["first_row"]
        probe.reach()
        probe.change(not probe.honest and not torch.equal(first, logits))
        return super().logprobs(submission, token, logits if probe.honest else first)


def _asks(prompt: tuple[int, ...], new: int, **sampling: object) -> Submit:
    """A small request with parameters."""
    return Submit(Request(prompt=prompt, max_new_tokens=new, sampling=Sampling(**sampling)))  # type: ignore[arg-type]


_ROW_LEAK, _GLOBAL = "sampling row leak", "batch-global decision"
_ECHO = (CheckName.ECHO,)
_ECHO_AND_SWAP = (CheckName.ECHO, CheckName.SWAP)

_LEFT_BEHIND = schedule(_asks((1,), 1), _asks((2,), 2, allowed=(7,)), Step(), _asks((3,), 1))
_MASK_KEPT = one_after_another(_asks((1,), 1, allowed=(7,)), _asks((2,), 1))
_COUNTS_KEPT = one_after_another(_asks((1,), 1, presence_penalty=1.0), _asks((2,), 1, presence_penalty=-50.0))

FAULTS = (
    Fault(
        name="state-left-behind",
        group=_ROW_LEAK,
        modelled_on="vllm#43894, vllm#49613 (a row's state copied down, and not taken from where it was)",
        doc="bias and allowed ids move with their row, and whoever comes to the row they left has them too",
        mixins={"sampler": LeftBehindSampler},
        smallest={Kind.ECHO: _LEFT_BEHIND, Kind.LEAK: _LEFT_BEHIND},
        checks=_ECHO_AND_SWAP,
    ),
    Fault(
        name="mask-kept",
        group=_ROW_LEAK,
        modelled_on="sglang#23653 (a mask that is kept between steps and never cleared)",
        doc="the next request in a row has the allowed ids of the one before",
        mixins={"sampler": KeptMaskSampler},
        smallest={Kind.ECHO: _MASK_KEPT, Kind.LEAK: _MASK_KEPT},
        checks=_ECHO_AND_SWAP,
    ),
    Fault(
        name="mask-filled-with-nothing",
        group=_GLOBAL,
        modelled_on="vllm#22896 (masks widened to the batch with zeros, which allow nothing)",
        doc="beside a request with allowed ids, one without may choose nothing",
        mixins={"sampler": ZeroMaskSampler},
        smallest={Kind.ECHO: at_once(_asks((1,), 1), _asks((2,), 1, allowed=(7,)))},
        checks=_ECHO,
    ),
    Fault(
        name="penalties-from-the-first",
        group=_GLOBAL,
        modelled_on="vllm#5639 (penalties gathered from the first penalised row on)",
        doc="rows before the first one with a penalty are left out when penalties are gathered, and the others move up",
        mixins={"sampler": FirstPenaltySampler},
        smallest={Kind.ECHO: at_once(_asks((10,), 1), _asks((2,), 1, repetition_penalty=0.01))},
        checks=_ECHO,
    ),
    Fault(
        name="counts-kept",
        group=_ROW_LEAK,
        modelled_on="vllm#43894, sglang#20724 (accumulators that outlive their request)",
        doc="the tokens of a row's last request are penalised for its next one",
        mixins={"sampler": KeptCountsSampler},
        smallest={Kind.ECHO: _COUNTS_KEPT, Kind.LEAK: _COUNTS_KEPT},
        checks=_ECHO_AND_SWAP,
    ),
    Fault(
        name="counts-late",
        group="late state",
        modelled_on="vllm#26467 (a placeholder where the last token should be), sglang#33643",
        doc="penalties do not know the last token yet",
        mixins={"sampler": LateCountsSampler},
        smallest={Kind.ECHO: at_once(_asks((1,), 2, presence_penalty=-50.0))},
        checks=_ECHO,
    ),
    Fault(
        name="penalty-of-the-last",
        group="late state",
        modelled_on="transformers#48468, transformers#43457 (processors given the current token only)",
        doc="the repetition penalty sees the last token and none before it",
        mixins={"sampler": LastTokenSampler},
        smallest={Kind.ECHO: at_once(_asks((6, 5), 1, repetition_penalty=0.01))},
        checks=_ECHO,
    ),
    Fault(
        name="noise-by-step",
        group=_GLOBAL,
        modelled_on="randomness keyed on the global step (on the list of planted bugs of another fuzzer of vllm)",
        doc="a request's noise follows from the number of the step, not from the number of its token",
        mixins={"sampler": StepNoiseSampler},
        smallest={Kind.ECHO: one_after_another(_asks((1,), 1), _asks((2,), 1, temperature=1.0))},
        checks=_ECHO,
    ),
    Fault(
        name="first-temperature",
        group=_GLOBAL,
        modelled_on="vllm#14301 (rows with and without a parameter in one batch: the first one's is taken)",
        doc="all rows that sample do so at the temperature of the first of them",
        mixins={"sampler": FirstTemperatureSampler},
        smallest={Kind.ECHO: at_once(_asks((1,), 1, temperature=0.01), _asks((2,), 1, temperature=5.0))},
        checks=_ECHO,
    ),
    Fault(
        name="logprobs-of-the-first",
        group=_ROW_LEAK,
        modelled_on="TensorRT-LLM#2787, vllm#29216 (log-probabilities by the wrong index)",
        doc="log-probabilities are those of the batch's first row",
        mixins={"sampler": FirstLogprobsSampler},
        smallest={Kind.ECHO: at_once(_asks((1,), 1), _asks((2,), 1, logprobs=1))},
        checks=_ECHO,
    ),
)
