"""Provenance: every cell that a request attends to is its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from oracle.checks.provenance import provenance
from oracle.finding import Report, Verdict
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model
from targets.protocol import (
    Admitted,
    Attended,
    CheckName,
    Emitted,
    Event,
    Finished,
    How,
    Kind,
    Preempted,
    Reason,
    Request,
    Schedule,
    Submit,
)
from targets.protocol.tags import NEVER, pack
from tests.oracle.handmade import LIFE, asked, case_of, report_of
from tests.quality.planting import plant, smallest

SCHEDULE = asked((1, 2), (3,))


def own(submission: int, *positions: int, generation: int = 1) -> list[int]:
    return [pack(submission, generation, position) for position in positions]


def report(
    *rows: tuple[int, list[int], list[bool]], generations: tuple[int, ...] = (1, 1), layers: tuple[int, ...] = (0,)
) -> Attended:
    """One forward of (submission, tags, visible) rows; what each layer saw is the same."""
    return Attended(
        submissions=tuple(who for who, _, _ in rows),
        generations=generations[: len(rows)],
        layers=layers,
        tags=torch.tensor([[tags for _, tags, _ in rows]] * len(layers)),
        visible=torch.tensor([[visible for _, _, visible in rows]] * len(layers)),
    )


def judged(*events: Event) -> Report:
    return report_of(provenance, case_of(SCHEDULE, events))


SEEN, HIDDEN = [True, True], [True, False]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(0, own(0, 0, 1), SEEN)], id="its own"),
        pytest.param([(0, own(0, 0, 1), SEEN), (1, [*own(1, 0), NEVER], HIDDEN)], id="unwritten and hidden"),
        pytest.param([(1, [*own(1, 0), *own(0, 1)], HIDDEN)], id="another's and hidden"),
        pytest.param([(1, [*own(1, 0), *own(1, 1, generation=0)], HIDDEN)], id="stale and hidden"),
        pytest.param([(0, own(0, 1, 1), SEEN)], id="its own twice: left to isolation"),
        pytest.param([(0, [pack(0, 1, 0, how) for how in (How.COPIED, How.HIT)], SEEN)], id="its own, however written"),
    ],
)
def test_a_row_that_sees_its_own_cells_has_no_complaint(rows: list[tuple[int, list[int], list[bool]]]) -> None:
    told = judged(report(*rows))
    assert (told.findings, told.unknown) == ([], [])
    assert told.cells == sum(sum(visible) for _, _, visible in rows)


@pytest.mark.parametrize(
    ("tag", "what", "sources", "evidence"),
    [
        (
            pack(0, 2, 7, How.COPIED),
            "request #1 attends to a cell of request #0",
            (0,),
            "last written for request #0, position 7, generation 2, copied on write",
        ),
        (
            pack(1, 0, 1),
            "request #1 attends to a cell of an earlier owner",
            (),
            "last written for request #1, position 1, generation 0, computed",
        ),
        (NEVER, "request #1 attends to a cell that nobody has written", (), "never written"),
    ],
)
def test_a_cell_that_is_not_the_row_s_own_is_a_leak_and_its_writer_is_named(
    tag: int, what: str, sources: tuple[int, ...], evidence: str
) -> None:
    told = judged(Emitted(1, 5), Emitted(0, 6), report((0, own(0, 0, 1), SEEN), (1, [*own(1, 0), tag], SEEN)), Emitted(1, 9))
    (finding,) = told.findings
    assert (finding.kind, finding.check, finding.what) == (Kind.LEAK, CheckName.PROVENANCE, what)
    assert (finding.submission, finding.position, finding.event, finding.sources) == (1, 1, 2, sources)
    assert (finding.answer, finding.actual) == ((5, 9), 9)
    assert finding.evidence == (
        f"provenance: for token 1 of request #1 (generation 1), layer 0 sees cell 1, {evidence}; 1 of the 2 cells that it "
        "sees are not its own",
    )


def test_the_layer_is_named_and_only_the_first_forward_is_reported() -> None:
    event = report((0, own(0, 0, 1), SEEN), layers=(0, 3))
    event.tags[1, 0, 1] = pack(1, 1, 0)
    told = judged(event, event)
    (finding,) = told.findings
    assert "layer 3 sees cell 1" in finding.evidence[0]
    assert finding.actual is None


# Cells that were there already: #1 begins as #0 did, and was admitted with some of its cells


def sharing(
    mine: tuple[int, ...] = (1, 2, 3, 9),
    theirs: tuple[int, ...] = (1, 2, 3, 4),
    salts: tuple[int | None, int | None] = (None, None),
    cached: int | None = 3,
    tags: tuple[int, ...] | None = None,
) -> Report:
    """What is said where #1 sees three cells that were written for #0, and then its own one (or those of `tags`)."""
    schedule = Schedule(
        ops=tuple(
            Submit(Request(prompt=prompt, max_new_tokens=3, salt=salt))
            for prompt, salt in zip((theirs, mine), salts, strict=True)
        )
    )
    seen = report((1, list(tags or (*own(0, 0, 1, 2), *own(1, 3))), [True] * 4))
    admitted = [] if cached is None else [Admitted(1, 1, cached)]
    events = (Admitted(0, 0), Emitted(0, 5), *admitted, seen, Emitted(1, 6))
    return report_of(provenance, case_of(schedule, events))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="the same tokens"),
        pytest.param({"salts": (7, 7)}, id="the same salt"),
        pytest.param({"cached": 4, "mine": (1, 2, 3, 4, 5), "tags": own(0, 0, 1, 2, 3)}, id="all of them"),
        pytest.param(
            {"cached": 5, "mine": (1, 2, 3, 4, 5, 6), "tags": (*own(0, 1, 2, 3, 4),)}, id="a token of the other's answer too"
        ),
        pytest.param(
            {"tags": (pack(0, 1, 0, How.COPIED), *own(0, 1, 2, generation=9), *own(1, 3))}, id="whoever wrote it, however"
        ),
        pytest.param({"tags": own(1, 0, 1, 2, generation=4) + own(1, 3)}, id="its own, of before it was preempted"),
    ],
)
def test_what_was_cached_for_a_row_and_written_for_the_same_tokens_and_salt_is_its_own(changes: dict[str, Any]) -> None:
    told = sharing(**changes)
    assert (told.findings, told.cells) == ([], 4)


@pytest.mark.parametrize(
    ("changes", "sources"),
    [
        pytest.param({"mine": (1, 2, 8, 9)}, (0,), id="other tokens"),
        pytest.param({"mine": (8, 2, 3, 9)}, (0,), id="other tokens before it"),
        pytest.param({"salts": (7, 8)}, (0,), id="another salt"),
        pytest.param({"salts": (None, 0)}, (0,), id="a salt and none"),
        pytest.param({"cached": 2}, (0,), id="beyond what was cached"),
        pytest.param({"cached": 0}, (0,), id="nothing was cached"),
        pytest.param({"cached": None}, (0,), id="it was never admitted"),
        pytest.param({"cached": 4, "tags": (*own(0, 0, 1), NEVER, *own(1, 3))}, (), id="never written"),
        pytest.param(
            {"cached": 3, "tags": (*own(0, 0, 1), *own(5, 2), *own(1, 3))}, (5,), id="of somebody who is not there"
        ),
        pytest.param({"tags": own(1, 0, 1, 2) + own(1, 3, generation=0)}, (), id="its own of an earlier owner, not cached"),
    ],
)
def test_what_was_written_for_another_is_a_leak_where_tokens_or_salts_differ_or_it_was_not_cached(
    changes: dict[str, Any], sources: tuple[int, ...]
) -> None:
    (finding,) = sharing(**changes).findings
    assert (finding.kind, finding.submission, finding.sources) == (Kind.LEAK, 1, sources)


def test_only_the_last_admission_says_what_is_cached() -> None:
    seen = report((1, [*own(0, 0, 1), *own(1, 2)], [True] * 3))
    schedule = asked((1, 2, 3), (1, 2, 4))
    events = (Admitted(0, 0), Admitted(1, 1, 2), seen, Preempted(1, 1), Admitted(1, 1), seen)
    (finding,) = report_of(provenance, case_of(schedule, events)).findings
    assert finding.event == 5


GOOD = {
    "submissions": (0,),
    "generations": (1,),
    "layers": (0,),
    "tags": torch.tensor([[own(0, 0, 1)]]),
    "visible": torch.tensor([[SEEN]]),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"tags": [[own(0, 0, 1)]]},
        {"visible": None},
        {"tags": torch.ones(1, 1, 2)},
        {"visible": torch.ones(1, 1, 2, dtype=torch.int64)},
        {"visible": torch.ones(1, 1, 3, dtype=torch.bool)},
        {"tags": torch.ones(2, dtype=torch.int64), "visible": torch.ones(2, dtype=torch.bool)},
        {"layers": (0, 1)},
        {"submissions": (0, 1)},
        {"submissions": (2,)},
        {"submissions": (-1,)},
        {"submissions": ("zero",)},
        {"submissions": None},
        {"generations": ()},
        {"generations": (None,)},
        {"layers": 1},
    ],
    ids=str,
)
def test_a_report_that_cannot_be_read_is_undecided_and_no_pass(wrong: dict[str, Any]) -> None:
    told = judged(Attended(**{**GOOD, **wrong}), Finished(0, Reason.LENGTH, ()))
    assert told.verdict is Verdict.UNKNOWN
    assert told.unknown[0].startswith("event 0, what the rows of a forward could see, has ")


def test_a_target_that_keeps_no_tags_is_not_complained_of() -> None:
    assert judged(Emitted(0, 1)) == Report()


FOUND = [name for name, fault in FAULTS.items() if CheckName.PROVENANCE in fault.checks]
ANYWHERE = [name for name in FOUND if FAULTS[name].targets[0] == "slots" and not FAULTS[name].settings]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FOUND} - {*ANYWHERE}))
def test_a_planted_leak_that_needs_settings_is_seen_on_its_smallest_schedule(tiny: Model, name: str) -> None:
    schedule = smallest(name, Kind.LEAK)
    schedule = msgspec.structs.replace(schedule, settings={**schedule.settings, "sanitize": True})
    for honest in (False, True):
        factory, _ = plant(tiny, name, honest)
        judgement = run_trio(Judge(factory).judge, schedule, [CheckName.PROVENANCE])
        assert [finding.kind for finding in judgement.findings] == ([] if honest else [Kind.LEAK])


@pytest.mark.slow
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_planted_leak_is_seen_in_one_replay_and_its_honest_twin_is_not(tiny: Model, name: str) -> None:
    for honest in (False, True):
        factory, _ = plant(tiny, name, honest)
        judge = Judge(factory)
        judgement = run_trio(judge.judge, LIFE, [CheckName.PROVENANCE])
        assert [finding.kind for finding in judgement.findings] == ([] if honest else [Kind.LEAK])
        assert judgement.report.cells
        assert judge.replays == 1


def test_nothing_is_looked_at_without_sanitize(slots: DecoderFactory) -> None:
    judgement = run_trio(Judge(slots).judge, SCHEDULE, [CheckName.PROVENANCE])
    assert judgement.report == Report()
