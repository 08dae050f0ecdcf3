"""Echo: it convicts what a request's own parameters do not choose, names whose do, and never an honest sampler."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.case import Alphabet
from oracle.checks.echo import echo
from oracle.finding import Finding, Verdict
from targets.decoder import Decoder, DecoderFactory, Parts, Sampler
from targets.models import Model
from targets.protocol import CheckName, Control, Emitted, Event, Kind, Request, Sampling, Schedule, Step, Submit
from tests.oracle.handmade import case_of, report_of

ALPHABET = Alphabet(6, ())
PROMISED = Control(forced=True, logits=True, sampling=True, noise=True)
ROW = torch.tensor([1.0, 4.0, 2.0, 4.0, -3.0, 0.0])


def ask(prompt: tuple[int, ...] = (1,), new: int = 4, stop: tuple[int, ...] = (), **sampling: object) -> Submit:
    return Submit(Request(prompt=prompt, max_new_tokens=new, stop=stop, sampling=Sampling(**sampling)))  # type: ignore[arg-type]


def found(*events: Event, asked: Sequence[Submit] = (ask(),), control: Control = PROMISED) -> list[Finding]:
    """What echo says of requests that were handed in together and heard these events."""
    case = case_of(Schedule(ops=tuple(asked)), events, control=control, alphabet=ALPHABET)
    return report_of(echo, case).findings


@pytest.mark.parametrize("token", [1, 3])
def test_every_one_of_the_largest_logits_is_a_greedy_choice(token: int) -> None:
    assert found(Emitted(0, token, ROW), Emitted(0, token, ROW)) == []


@pytest.mark.parametrize("control", [PROMISED, Control(logits=True)], ids=["promised", "unpromised"])
def test_a_greedy_token_below_the_largest_logit_is_convicted_by_however_little(control: Control) -> None:
    close = torch.tensor([5.0, 5.0 - 1e-15, 0, 0, 0, 0], dtype=torch.float64)
    (finding,) = found(Emitted(0, 0, close), Emitted(0, 1, close), control=control)
    assert (finding.kind, finding.check, finding.submission, finding.position) == (Kind.ECHO, CheckName.ECHO, 0, 1)
    assert (finding.expected, finding.actual) == (0, 1)


def test_forced_tokens_and_logits_that_are_not_finite_are_not_asked_about() -> None:
    forced = Submit(Request(prompt=(1,), max_new_tokens=4, forced=(4,)))
    assert found(Emitted(0, 4, ROW), Emitted(0, 1, ROW), asked=[forced]) == []
    assert found(Emitted(0, 4, ROW), Emitted(0, 4, ROW), asked=[forced])[0].position == 1
    nothing = torch.tensor([float("nan"), 1, 2, 3, 4, 5])
    assert found(Emitted(0, 0, nothing)) == []
    assert found(Emitted(0, 0, nothing), asked=[ask(temperature=1.0)]) == []


def test_what_the_target_does_not_promise_is_not_asked_for() -> None:
    sampled, biased = ask(temperature=1.0, seed=1), ask(bias=((4, 90.0),))
    assert found(Emitted(0, 4, ROW), asked=[sampled], control=Control(logits=True, sampling=True)) == []
    assert found(Emitted(0, 1, ROW), asked=[biased], control=Control(logits=True)) == []
    assert len(found(Emitted(0, 1, ROW), asked=[biased], control=Control(logits=True, sampling=True))) == 1
    assert len(found(*(Emitted(0, 4, ROW) for _ in range(4)), asked=[sampled])) == 1


@pytest.mark.parametrize("shown", [ROW, None], ids=["logits", "tokens only"])
def test_ids_that_are_not_allowed_and_stop_ids_that_come_too_soon_need_no_logits(shown: torch.Tensor | None) -> None:
    (finding,) = found(Emitted(0, 2, shown), Emitted(0, 1, shown), asked=[ask(allowed=(0, 2), temperature=0.0)])
    assert finding.what == "request #0 gets 1 as token 1, which is not among its allowed ids"
    early = ask(stop=(1,), min_new_tokens=2)
    (finding,) = found(Emitted(0, 3, shown), Emitted(0, 1, shown), asked=[early])
    assert finding.what == "request #0 gets 1 as token 1, a stop id, before 2 tokens stand"
    assert found(Emitted(0, 3, shown), Emitted(0, 3, shown), Emitted(0, 1, shown), asked=[early]) == []


RIGHT = ROW.double().log_softmax(-1).tolist()


@pytest.mark.parametrize(
    ("asked", "told", "complaint"),
    [
        (0, (), None),
        (2, ((3, RIGHT[3]), (1, RIGHT[1]), (3, RIGHT[3])), None),
        (2, ((3, RIGHT[3]), (3, RIGHT[3]), (1, RIGHT[1])), None),
        (9, ((3, RIGHT[3]), *((token, RIGHT[token]) for token in (1, 3, 2, 0, 5, 4))), None),
        (0, ((3, RIGHT[3]),), "1 log-probabilities instead of 0"),
        (2, (), "0 log-probabilities instead of 3"),
        (1, ((3, RIGHT[3]), (1, RIGHT[1]), (2, RIGHT[2])), "3 log-probabilities instead of 2"),
        (1, ((1, RIGHT[1]), (1, RIGHT[1])), "the log-probability of 1 instead of 3"),
        (2, ((3, RIGHT[3]), (1, RIGHT[1]), (1, RIGHT[1])), "the log-probability of one id twice"),
        (1, ((3, RIGHT[3]), (2, RIGHT[2])), "2 as likeliest id number 1, which it is not"),
        (1, ((3, RIGHT[3] + 1e-9), (1, RIGHT[1])), f"a log-probability of {RIGHT[3]:.6g} for 3 instead of {RIGHT[3]:.6g}"),
        (1, ((3, RIGHT[3]), (6, RIGHT[1])), "the log-probability of an id that does not exist"),
        (1, ((3, float("nan")), (1, RIGHT[1])), f"a log-probability of nan for 3 instead of {RIGHT[3]:.6g}"),
    ],
)
def test_log_probabilities_are_as_many_as_asked_of_the_right_ids(
    asked: int, told: tuple[tuple[int, float], ...], complaint: str | None
) -> None:
    findings = found(Emitted(0, 3, ROW, told), asked=[ask(logprobs=asked)])
    assert [finding.what for finding in findings] == ([f"request #0 is told {complaint} with token 0"] if complaint else [])


class NeighboursBias(Sampler):
    """The bias of the next row."""

    def biased(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return scores + self.state.bias[rows].roll(-1, dims=0)


class StepNoise(Sampler):
    """Noise by the number of the step."""

    def choose(self, submissions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
        return super().choose(submissions, logits)

    def noise(self, row: int) -> torch.Tensor:
        self.rows[row].length, own = self.__dict__["calls"], self.rows[row].length
        noise = super().noise(row)
        self.rows[row].length = own
        return noise


class KeptCounts(Sampler):
    """Counts stay where they were counted."""

    def leave(self, submission: int) -> None:
        kept = None if self.slabs is None else self.slabs.counts.clone()
        super().leave(submission)
        if self.slabs is not None and kept is not None:
            self.slabs.counts.copy_(kept)

    def fill(self, row: int, slabs: object, request: Request, answer: Sequence[int]) -> None:
        kept = self.state.counts[row].clone()
        super().fill(row, self.state, request, answer)
        self.state.counts[row] += kept


class LeftBehindMask(Sampler):
    """The mask stays in the row that moved; whoever comes there has it."""

    def leave(self, submission: int) -> None:
        last = len(self.rows) - 1
        kept = None if self.slabs is None else self.slabs.barred[last].clone()
        super().leave(submission)
        if kept is not None:
            self.state.barred[last] = kept

    def restricted(self, scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return super().restricted(scores, rows).masked_fill(self.state.barred[rows], -torch.inf)


class NoMinimum(Sampler):
    """Stop ids may be chosen at once."""

    def fill(self, row: int, slabs: object, request: Request, answer: Sequence[int]) -> None:
        super().fill(row, self.state, request, answer)
        self.state.ends[row] = False


class OthersLogprobs(Sampler):
    """Log-probabilities of the last row."""

    def choose(self, submissions: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        self.__dict__["last"] = logits[-1]
        return super().choose(submissions, logits)

    def logprobs(self, submission: int, token: int, logits: torch.Tensor) -> tuple[tuple[int, float], ...]:
        return super().logprobs(submission, token, self.__dict__["last"])


def schedule(*ops: Submit | Step) -> Schedule:
    return Schedule(ops=ops)


# The likeliest token of the prompt (2,) is 85, of (1,) 307.
PLANTED = {
    NeighboursBias: (schedule(ask((1,), bias=((7, 90.0),)), ask((2,), bias=((8, 90.0),))), "with the bias of request #1"),
    StepNoise: (schedule(ask((1,), temperature=2.0), Step(2), ask((2,), temperature=2.0, seed=5)), "with the noise of the"),
    KeptCounts: (
        schedule(ask((1,), new=1, presence_penalty=1.0), Step(1), ask((2,), new=1, presence_penalty=-90.0)),
        "with the tokens of request #0 counted as well",
    ),
    LeftBehindMask: (
        schedule(ask((1,), new=1), ask((2,), allowed=(7,)), Step(1), ask((3,), bias=((9, 1.0),))),
        "with the allowed ids of request #1",
    ),
    NoMinimum: (schedule(ask((1,), stop=(307,), min_new_tokens=2), ask((2,))), "without its own min new tokens"),
    OthersLogprobs: (schedule(ask((1,), logprobs=2), ask((2,))), "under logits of request #1"),
}


def judged(tiny: Model, sampler: type[Sampler], asked: Schedule) -> tuple[list[Finding], Verdict]:
    judge = Judge(DecoderFactory(tiny, Parts(decoder=Decoder, sampler=sampler)))
    judgement = run_trio(functools.partial(judge.judge, thorough=True), asked)
    assert judgement.crashed_checks == ()
    return judgement.findings, judgement.verdict


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_parameter_that_goes_to_the_wrong_row_is_found_and_its_source_named(tiny: Model, planted: type[Sampler]) -> None:
    asked, said = PLANTED[planted]
    findings, _ = judged(tiny, planted, asked)
    assert {finding.kind for finding in findings} <= {Kind.ECHO, Kind.LEAK}
    evidence = [sentence for finding in findings if finding.check is CheckName.ECHO for sentence in finding.evidence]
    assert any(said in sentence for sentence in evidence), evidence
    if said.startswith(("with the bias", "with the allowed", "under")):
        assert any(finding.sources for finding in findings if finding.check is CheckName.ECHO)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_honest_sampler_passes_the_same(tiny: Model, planted: type[Sampler]) -> None:
    assert judged(tiny, Sampler, PLANTED[planted][0]) == ([], Verdict.PASS)
