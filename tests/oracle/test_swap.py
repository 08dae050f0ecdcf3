"""The swap: what it exchanges, what it leaves, and what a change of bits means."""

from __future__ import annotations

import functools

import msgspec
import pytest
import torch

from fuzz.conductor import replay, run_trio
from fuzz.judge import Judge
from oracle.case import Alphabet
from oracle.checks.swap import swap, swapped
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import (
    Asked,
    Audited,
    CheckName,
    Emitted,
    Event,
    Finished,
    Kind,
    Reason,
    Request,
    Sampling,
    Schedule,
    Step,
    Stepped,
    Submit,
    Trace,
    submissions,
)
from tests.oracle.handmade import asked, case_of, report_of

ALPHABET = Alphabet(16, special_ids=(0, 8))
ORDINARY = tuple(token for token in range(16) if token not in (0, 8))


def answered(schedule: Schedule, *answers: tuple[int, ...], shift: float = 0.0, reason: Reason = Reason.LENGTH) -> Trace:
    """Everybody is answered at once; `shift` moves the logits of the first request's last token."""
    told: list[Event] = [Asked(index) for index in range(len(schedule.ops))]
    told.append(Stepped(0))
    for who, answer in enumerate(answers):
        for index, token in enumerate(answer):
            moved = shift if who == 0 and index == len(answer) - 1 else 0.0
            told.append(Emitted(who, token, torch.tensor([moved, 1.0])))
        told.append(Finished(who, reason, answer))
    return tuple(told)


def exchanged(schedule: Schedule, *answers: tuple[int, ...], alphabet: Alphabet = ALPHABET) -> tuple[Request, ...]:
    """The requests when #0 is the victim and the others are swapped."""
    case = case_of(schedule, answered(schedule, *answers), alphabet=alphabet)
    return submissions(swapped(case, [0], range(1, len(case.requests))))


def test_no_ordinary_token_keeps_its_place_and_no_two_share_one() -> None:
    schedule = asked((2,), ORDINARY)
    _, other = exchanged(schedule, (1, 1), (1, 1))
    assert sorted(other.prompt) == sorted(ORDINARY)
    assert all(image != token for image, token in zip(other.prompt, ORDINARY, strict=True))


def test_special_ids_and_ids_past_the_vocabulary_stay() -> None:
    _, other = exchanged(asked((2,), (0, 16, 8, 3)), (1, 1), (1, 1))
    assert other.prompt[:3] == (0, 16, 8)
    assert other.prompt[3] != 3


def test_the_victim_and_the_ops_stay_as_they_are() -> None:
    victim = Submit(Request(prompt=(1, 2), max_new_tokens=2, stop=(5,), client_id=3, deadline_s=9))
    schedule = Schedule(ops=(victim, Step(2), *asked((3,)).ops, Step(rows=(0,))), settings={"slots": 2})
    case = case_of(schedule, answered(schedule, (1, 1), (2, 2)), alphabet=ALPHABET)
    changed = swapped(case, [0], [1])
    assert changed.settings == schedule.settings
    assert [op for op in changed.ops if not isinstance(op, Submit)] == [Step(2), Step(rows=(0,))]
    assert changed.ops[0] == victim


def test_a_prefix_shared_with_the_victim_is_kept() -> None:
    _, other = exchanged(asked((1, 2, 3, 4), (1, 2, 3, 9, 9)), (1, 1), (1, 1))
    assert other.prompt[:3] == (1, 2, 3)
    assert 9 not in other.prompt[3:]


def test_an_answer_from_which_the_victim_goes_on_is_kept_and_forced() -> None:
    _, other = exchanged(asked((1, 2, 5, 6, 9), (1, 2)), (1, 1), (5, 6, 7))
    assert other.prompt == (1, 2)
    assert other.forced[:2] == (5, 6)
    assert other.forced[2] != 7


def test_who_goes_on_from_the_victim_keeps_what_it_has_from_it() -> None:
    _, other = exchanged(asked((1, 2), (1, 2, 5, 6, 9)), (5, 6), (3,))
    assert other.prompt[:4] == (1, 2, 5, 6)
    assert other.prompt[4] != 9


def test_an_answer_that_is_like_the_victim_s_and_in_nobody_s_prompt_is_exchanged() -> None:
    _, other = exchanged(asked((1, 2), (1, 2)), (5, 6), (5, 6))
    assert other.prompt == (1, 2)
    assert all(token not in (5, 6) or token != before for token, before in zip(other.forced, (5, 6), strict=True))


def test_what_is_shared_with_the_victim_is_not_lengthened() -> None:
    for size in range(3, 30):
        _, other = exchanged(asked((1, 2), (1, 1), new=size), (1, 1), (1, 1), alphabet=Alphabet(4, (0,)))
        assert other.prompt == (1, 3), "of the two images that 1 may have, 2 would share more with the victim"


def test_stop_ids_go_through_the_same_bijection_as_the_prompt() -> None:
    submit = Submit(Request(prompt=(3, 5), max_new_tokens=2, stop=(5, 8)))
    _, other = exchanged(Schedule(ops=(*asked((1,)).ops, submit)), (1, 1), (1, 5))
    assert other.stop == (other.prompt[1], 8)


def test_the_ids_that_sampling_names_go_through_it_too_and_nothing_else_of_it_changes() -> None:
    sampling = Sampling(temperature=0.5, seed=3, bias=((5, 2.0), (8, -1.0)), allowed=(3, 8), min_new_tokens=1, logprobs=2)
    submit = Submit(Request(prompt=(3, 5), max_new_tokens=2, stop_sequences=((5, 3), (8,)), sampling=sampling))
    victim, other = exchanged(Schedule(ops=(submit, submit)), (1, 1), (1, 5))
    assert victim == submit.request
    (_, other) = exchanged(Schedule(ops=(*asked((1,)).ops, submit)), (1, 1), (1, 5))
    three, five = other.prompt
    assert other.stop_sequences == ((five, three), (8,))
    changed = {"bias": ((five, 2.0), (8, -1.0)), "allowed": (three, 8)}
    assert other.sampling == msgspec.structs.replace(sampling, **changed)


def test_tokens_that_were_emitted_are_forced_to_their_images() -> None:
    _, other = exchanged(asked((1,), (3, 5)), (1, 1), (5, 0, 3))
    assert other.forced == (other.prompt[1], 0, other.prompt[0])


def test_a_request_alone_is_not_swapped() -> None:
    schedule = asked((1,))
    report = report_of(swap, case_of(schedule, answered(schedule, (1, 1))))
    assert (report.pairs, report.pairs_undecided, report.findings) == (0, 0, [])


BEFORE = asked((1, 2), (3, 4))
"""Either request may be the victim: with `thorough` each is, the first one first."""


@pytest.mark.parametrize(
    ("after", "kinds", "pairs", "undecided"),
    [
        pytest.param({}, [], 2, 0, id="the same bits: nothing is found"),
        pytest.param({"shift": 1e-7}, [Kind.LEAK], 1, 0, id="other bits: a leak"),
        pytest.param({"reason": Reason.STOP}, [], 0, 2, id="another skeleton: undecided"),
    ],
)
def test_the_victim_s_bits_decide(after: dict[str, float], kinds: list[Kind], pairs: int, undecided: int) -> None:
    case = case_of(BEFORE, answered(BEFORE, (5, 6), (7, 8)), thorough=True)
    report = report_of(swap, case, lambda _: answered(BEFORE, (5, 6), (7, 8), **after))  # type: ignore[arg-type]
    assert [finding.kind for finding in report.findings] == kinds
    assert (report.pairs, report.pairs_undecided) == (pairs, undecided)


def test_bits_that_change_before_the_skeleton_departs_are_a_leak() -> None:
    case = case_of(BEFORE, answered(BEFORE, (5, 6), (7, 8)), thorough=True)
    report = report_of(swap, case, lambda _: answered(BEFORE, (5, 6), (7, 8), shift=1e-7, reason=Reason.STOP))
    (finding,) = report.findings
    assert (finding.kind, finding.check, finding.submission, finding.position) == (Kind.LEAK, CheckName.SWAP, 0, 1)


@pytest.mark.parametrize(
    ("needed", "sources", "asked_what"),
    [
        pytest.param({1, 3}, (1, 3), "#1 #3 asked together", id="two must change together"),
        pytest.param({1, 2, 4}, (1, 2, 4), "#1 #2 #4 asked together", id="three must change together"),
        pytest.param({2}, (2,), "#2 asked", id="one is enough, and is named alone"),
        pytest.param({1, 2, 3, 4, 5}, (1, 2, 3, 4, 5), "#1 #2 #3 #4 #5 asked together", id="all must"),
    ],
)
def test_neighbours_that_must_change_together_are_named_as_the_smallest_group(
    needed: set[int], sources: tuple[int, ...], asked_what: str
) -> None:
    schedule = asked((1, 2), *((3 + who, 9) for who in range(5)), new=1)
    answers = ((5,),) * 6

    def play(variant: Schedule) -> Trace:
        pairs = zip(submissions(schedule), submissions(variant), strict=True)
        moved = {who for who, (before, after) in enumerate(pairs) if before.prompt != after.prompt}
        return answered(schedule, *answers, shift=1e-7 if needed <= moved else 0.0)

    report = report_of(swap, case_of(schedule, answered(schedule, *answers), alphabet=ALPHABET, thorough=True), play)
    (finding,) = report.findings
    assert (finding.submission, finding.sources) == (0, sources)
    assert finding.what == f"request #0 depends on what {asked_what}"
    assert any("no single neighbour" in sentence for sentence in finding.evidence) == (len(needed) > 1)


def test_a_group_that_changes_nothing_the_second_time_is_not_named() -> None:
    schedule = asked((1, 2), (3, 9), (4, 9), new=1)
    answers, replays = ((5,),) * 3, iter([1e-7])
    case = case_of(schedule, answered(schedule, *answers), alphabet=ALPHABET, thorough=True)
    report = report_of(swap, case, lambda _: answered(schedule, *answers, shift=next(replays, 0.0)))
    (finding,) = report.findings
    assert (finding.sources, finding.what) == ((), "request #0 depends on what others asked")


def test_a_trace_that_stops_short_is_undecided() -> None:
    case = case_of(BEFORE, answered(BEFORE, (5, 6), (7, 8)), thorough=True)
    report = report_of(swap, case, lambda _: answered(BEFORE, (5, 6), (7, 8))[:-1])
    assert (report.pairs, report.pairs_undecided) == (0, 2)


def test_one_half_a_schedule_is_swapped_and_the_same_half_each_time() -> None:
    schedule = asked(*((prompt,) for prompt in range(1, 7)))
    answers = ((5, 6),) * 6
    variants: list[Schedule] = []
    for _ in range(2):
        case = case_of(schedule, answered(schedule, *answers), alphabet=ALPHABET)

        def play(variant: Schedule) -> Trace:
            variants.append(variant)
            return answered(schedule, *answers)

        report_of(swap, case, play)
    assert len(variants) == 2
    assert variants[0] == variants[1]
    pairs = zip(submissions(schedule), submissions(variants[0]), strict=True)
    assert sum(before != after for before, after in pairs) == 3


def test_an_honest_decoder_passes_the_swap(slots: DecoderFactory) -> None:
    schedule = Schedule(ops=(*asked((1, 2), (3,), new=4).ops, Step(2), *asked((5, 6, 7), new=3).ops), settings={"slots": 2})
    trace = replay(slots, schedule)
    alphabet = Alphabet(slots.vocabulary, slots.special_ids)
    report = report_of(swap, case_of(schedule, trace, alphabet=alphabet, thorough=True), functools.partial(replay, slots))
    assert (report.findings, report.pairs, report.pairs_undecided) == ([], 3, 0)
    assert any(isinstance(event, Audited) for event in trace), "accounts are no part of the comparison"


def test_requests_that_have_left_are_neighbours_too(tiny: Model) -> None:
    fault = FAULTS["stale-length"]
    schedule = fault.smallest[Kind.LEAK]
    judge = Judge(DecoderFactory(tiny, fault.plant()))
    judgement = run_trio(functools.partial(judge.judge, thorough=True), schedule, [CheckName.SWAP])
    (finding,) = judgement.findings
    assert (finding.kind, finding.submission, finding.sources) == (Kind.LEAK, 1, (0,))
    ends = [index for index, event in enumerate(judgement.trace) if isinstance(event, Finished)]
    assert ends[0] < judgement.trace.index(Asked(2)) < ends[1], "#0 has ended before #1 asks"


def test_of_several_neighbours_the_source_is_named(tiny: Model) -> None:
    fault = FAULTS["late-token"]
    schedule = Schedule(ops=(*asked((9,), new=6).ops, *asked((1,), new=1).ops, Step(), *asked((2,), new=1).ops))
    judge = Judge(DecoderFactory(tiny, fault.plant()))
    judgement = run_trio(functools.partial(judge.judge, thorough=True), schedule, [CheckName.SWAP])
    (finding,) = judgement.findings
    assert (finding.submission, finding.sources) == (2, (1,))
    assert finding.what == "request #2 depends on what #1 asked"
