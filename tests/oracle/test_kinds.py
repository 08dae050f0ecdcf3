"""Kinds: which experiment turns a suspect into which finding, and which clears it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import msgspec
import pytest

from fuzz.conductor import replay, run_trio
from fuzz.judge import Judge
from oracle.case import Alphabet, Case
from oracle.checks.isolation import isolation
from oracle.finding import Report, Verdict
from oracle.reference import Reference
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import CheckName, Control, Emitted, Kind, Request, Schedule, Setting, Trace
from tests.oracle.handmade import asked, case_of, report_of

FLOAT32: dict[str, Setting] = {"dtype": "float32"}
PAIR = asked((1, 2, 3), (4,), new=4)


def with_settings(schedule: Schedule, settings: Mapping[str, Setting]) -> Schedule:
    return msgspec.structs.replace(schedule, settings={**schedule.settings, **settings})


def strict(factory: DecoderFactory) -> Callable[[Mapping[str, Setting]], Reference]:
    """References that allow float32 no rounding at all, and float64 as much as it needs."""

    @functools.cache
    def of(dtype: str) -> Reference:
        return Reference(factory.network({"dtype": dtype}), 1e-9 if dtype == "float64" else 0.0)

    return lambda settings: of(str(settings.get("dtype", "float64")))


def judged(factory: DecoderFactory, schedule: Schedule, control: Control | None = None) -> Report:
    """What isolation says of a schedule when every bit that float32 rounds makes a suspect."""
    case: Case = case_of(
        schedule,
        replay(factory, schedule),
        control=control or factory.control,
        references=strict(factory),
        alphabet=Alphabet(factory.vocabulary, factory.special_ids),
        context_tokens_max=factory.context_tokens_max(schedule.settings),
    )
    return report_of(isolation, case, functools.partial(replay, factory))


@pytest.mark.parametrize(
    ("name", "kind", "check"),
    [
        ("global-cache-overwritten", Kind.LEAK, CheckName.SWAP),
        ("position-of-longest", Kind.INTERFERENCE, CheckName.ISOLATION),
        ("layer-off-by-one", Kind.WRONG_ALONE, CheckName.ISOLATION),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_planted_bug_is_given_its_kind(tiny: Model, name: str, kind: Kind, check: CheckName, dtype: str) -> None:
    fault = FAULTS[name]
    schedule = with_settings(fault.smallest[kind], {"dtype": dtype})
    judgement = run_trio(Judge(DecoderFactory(tiny, fault.plant())).judge, schedule, [CheckName.ISOLATION])
    (finding,) = judgement.findings
    assert (finding.kind, finding.check) == (kind, check)
    assert judgement.report.suspects == 1
    assert finding.size is not None
    assert finding.bound is not None
    assert finding.size > finding.bound


def test_a_finding_carries_the_victim_s_whole_isolated_answer(tiny: Model) -> None:
    fault = FAULTS["position-of-longest"]
    factory = DecoderFactory(tiny, fault.plant())
    schedule = asked((1,), (1, 2), new=3)
    judge = Judge(factory)
    judgement = run_trio(functools.partial(judge.judge, thorough=True), schedule, [CheckName.ISOLATION])
    (finding,) = judgement.findings
    assert finding.submission == 0
    isolated = judge.reference({}).greedy(Request(prompt=(1,), max_new_tokens=3), 256)
    assert len(isolated) == 3
    assert finding.isolated == isolated
    assert len(finding.answer) == 3


def test_a_suspect_that_is_only_rounding_is_refuted_by_a_float64_replay(slots: DecoderFactory) -> None:
    report = judged(slots, with_settings(PAIR, FLOAT32))
    assert report.suspects == report.refuted > 0
    assert report.findings == []
    assert report.unknown == []
    assert report.verdict is Verdict.PASS


def test_interference_in_float32_is_confirmed_by_a_float64_replay(tiny: Model) -> None:
    fault = FAULTS["position-of-longest"]
    factory = DecoderFactory(tiny, fault.plant())
    (finding,) = judged(factory, with_settings(fault.smallest[Kind.INTERFERENCE], FLOAT32)).findings
    assert finding.kind is Kind.INTERFERENCE
    assert (
        "float64: the same schedule with the same tokens forced departs as well, so it is not rounding" in finding.evidence
    )


def test_interference_that_shows_only_in_tokens_is_confirmed_too(tiny: Model) -> None:
    factory = DecoderFactory(tiny, FAULTS["position-of-longest"].plant())

    def mute(schedule: Schedule) -> Trace:
        return tuple(
            Emitted(event.submission, event.token) if isinstance(event, Emitted) else event
            for event in replay(factory, schedule)
        )

    schedule = with_settings(asked((1,), (9, 8, 7, 6, 5, 4, 3, 2), new=16), FLOAT32)
    control = msgspec.structs.replace(factory.control, logits=False)
    judge = Judge(factory)
    case = case_of(
        schedule,
        mute(schedule),
        control=control,
        references=judge.reference,
        alphabet=Alphabet(factory.vocabulary, factory.special_ids),
    )
    report = report_of(isolation, case, mute)
    assert report.suspects == 1
    assert [finding.kind for finding in report.findings] == [Kind.INTERFERENCE]


def test_a_target_whose_own_precision_is_another_is_asked_in_float64_all_the_same(slots: DecoderFactory) -> None:
    def play(schedule: Schedule) -> Trace:
        return replay(slots, with_settings(schedule, {"dtype": schedule.settings.get("dtype", "float32")}))

    case = case_of(
        PAIR,
        play(PAIR),
        control=slots.control,
        references=lambda settings: strict(slots)({"dtype": settings.get("dtype", "float32")}),
        alphabet=Alphabet(slots.vocabulary, slots.special_ids),
    )
    report = report_of(isolation, case, play)
    assert report.suspects == report.refuted == 2


def test_with_no_float64_to_ask_and_nobody_to_swap_a_suspect_stays_unknown(slots: DecoderFactory) -> None:
    alone = with_settings(asked((1, 2, 3), new=4), FLOAT32)
    control = msgspec.structs.replace(slots.control, float64=False)
    report = judged(slots, alone, control)
    assert report.suspects == len(report.unknown) == 1
    assert report.findings == []
    assert report.verdict is Verdict.UNKNOWN
    assert report.unknown[0].endswith("and the target has no float64 to ask")


def test_with_no_float64_to_ask_a_swap_still_convicts(tiny: Model) -> None:
    fault = FAULTS["global-cache-overwritten"]
    factory = DecoderFactory(tiny, fault.plant())
    control = msgspec.structs.replace(factory.control, float64=False)
    report = judged(factory, with_settings(fault.smallest[Kind.LEAK], FLOAT32), control)
    assert [finding.kind for finding in report.findings] == [Kind.LEAK]


def test_a_refuted_suspect_makes_room_for_the_next(slots: DecoderFactory) -> None:
    report = judged(slots, with_settings(asked((1, 2, 3), (4, 5), (6, 7, 8, 9), new=4), FLOAT32))
    assert report.suspects == 3 == report.refuted


def test_what_is_wrong_alone_does_not_hide_that_its_neighbours_matter_too(tiny: Model) -> None:
    both = FAULTS["position-of-longest"].plant(FAULTS["heads-share"].plant())
    schedule = asked((1,), (1, 2), new=3)
    for dtype in ("float64", "float32"):
        judge = Judge(DecoderFactory(tiny, both))
        judgement = run_trio(judge.judge, with_settings(schedule, {"dtype": dtype}), [CheckName.ISOLATION])
        assert {finding.kind for finding in judgement.findings} == {Kind.WRONG_ALONE, Kind.INTERFERENCE}


def test_what_is_wrong_alone_and_the_same_beside_others_is_nothing_else(tiny: Model) -> None:
    judge = Judge(DecoderFactory(tiny, FAULTS["heads-share"].plant()))
    judgement = run_trio(judge.judge, asked((1,), (1, 2), new=3), [CheckName.ISOLATION])
    assert [finding.kind for finding in judgement.findings] == [Kind.WRONG_ALONE, Kind.WRONG_ALONE]


def test_only_a_few_requests_of_one_schedule_are_convicted(tiny: Model) -> None:
    judge = Judge(DecoderFactory(tiny, FAULTS["heads-share"].plant()))
    schedule = asked((1,), (2,), (3,), (4,), (5,))
    assert len(run_trio(judge.judge, schedule, [CheckName.ISOLATION]).findings) == 3


def test_logits_that_are_no_numbers_are_left_to_survival(slots: DecoderFactory) -> None:
    def spoilt(event: object) -> object:
        if not isinstance(event, Emitted) or event.submission or event.logits is None:
            return event
        return msgspec.structs.replace(event, logits=event.logits * float("nan"))

    judge = Judge(slots)
    trace: Trace = tuple(map(spoilt, replay(slots, PAIR)))  # type: ignore[arg-type]
    judgement = run_trio(judge.ask, judge.case(PAIR, trace), [CheckName.SURVIVAL, CheckName.ISOLATION])
    assert {(finding.kind, finding.check) for finding in judgement.findings} == {(Kind.NONFINITE, CheckName.SURVIVAL)}
    assert judgement.crashed_checks == ()
