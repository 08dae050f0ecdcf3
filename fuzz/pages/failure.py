"""A failure's page: what a study knows, put in the order in which a reader asks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.explain import Study, headline
from fuzz.pages.render import render
from fuzz.pages.timeline import timeline
from fuzz.report import replay_of, sizes
from fuzz.repro import Repro
from oracle.finding import Finding
from oracle.where import Where
from targets.protocol import format_schedule, submissions

CELLS_AROUND = 12
"""So many cells are drawn on each side of the one that was read wrongly."""
TOKENS_MAX = 200


@dataclass(frozen=True)
class Token:
    """One position of an answer; None where one side has ended."""

    index: int
    alone: int | None
    here: int | None
    first: bool

    @property
    def same(self) -> bool:
        """Whether both say the same."""
        return self.alone == self.here


@dataclass(frozen=True)
class Strip:
    """The victim's cells at the moment in which it went wrong.

    Attributes:
        cells: Their positions, the drawn ones.
        wrong: The one that departs.
        before, after: How many are left out on each side.
    """

    cells: range
    wrong: int
    before: int
    after: int


def failure_page(study: Study, path: Path) -> str:
    """The page of a stored failure, as one HTML file."""
    repro, finding = study.repro, study.finding
    where = study.diagnosis.located.where
    requests, ops, prompt, new = sizes(repro)
    return render(
        "failure.html",
        repro=repro,
        finding=finding,
        title=f"{finding.kind}: {finding.what}",
        headline=" ".join(headline(finding).split()),
        path=path,
        sizes={"requests": requests, "other ops": ops, "prompt tokens": prompt, "new tokens": new},
        requests=submissions(repro.schedule),
        timeline=timeline(repro.schedule, study.trace, None if where is None else where.step),
        where=where,
        why=study.diagnosis.located.why,
        strip=_strip(study, where),
        tokens=_tokens(finding),
        tokens_max=TOKENS_MAX,
        cells=study.cells,
        steps=_steps(study),
        outcomes=study.diagnosis.outcomes,
        evidence=[_split(sentence) for sentence in finding.evidence],
        symptom=study.diagnosis.symptom,
        schedule=format_schedule(repro.schedule),
        pytest=pytest_file(repro),
        replay=replay_of(repro, path),
    )


def pytest_file(repro: Repro) -> str:
    """A test that fails as long as the failure is there: it can be pasted as it stands."""
    spec = repro.target
    arguments = [f"target={spec.target!r}"] if spec.target != "slots" else []
    arguments += [f"model={spec.model!r}"] if spec.model != "tiny" else []
    arguments += [f"faults={spec.faults!r}"] if spec.faults else []
    kind = re.sub(r"\W", "_", repro.finding.kind.lower())
    data = msgspec.json.format(msgspec.json.encode(repro.schedule), indent=1).decode()
    quoted = data.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    call = ", ".join(["SCHEDULE", *arguments])
    return "\n".join(
        [
            f'"""{_one_line(repro.finding.kind, repro.finding.what)}"""',
            "",
            "from fuzz.testing import assert_nothing_wrong",
            "",
            f'SCHEDULE = """{quoted}"""',
            "",
            "",
            f"def test_no_{kind}_{repro.id}():",
            f"    assert_nothing_wrong({call})",
            "",
        ]
    )


def _one_line(kind: str, what: str) -> str:
    """What was found, as a docstring."""
    return f"{kind}: {what}.".replace("\\", "/").replace('"', "'").replace("\n", " ")


def _tokens(finding: Finding) -> list[Token]:
    """Both answers side by side."""
    count = min(TOKENS_MAX, max(len(finding.isolated), len(finding.answer)))
    return [
        Token(index, _at(finding.isolated, index), _at(finding.answer, index), index == finding.position)
        for index in range(count)
    ]


def _at(tokens: tuple[int, ...], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None


def _strip(study: Study, where: Where | None) -> Strip | None:
    """The cells around the one that was read wrongly; None where it is not one cell."""
    if where is None or where.cell is None:
        return None
    lengths = [step.length for step in study.cells.here if step.step == where.step]
    total = max([where.cell + 1, *lengths])
    first, last = max(0, where.cell - CELLS_AROUND), min(total, where.cell + CELLS_AROUND + 1)
    return Strip(range(first, last), where.cell, first, total - last)


def _steps(study: Study) -> list[dict[str, object]]:
    """The victim's cells step by step, beside those of the request alone that had run as many tokens."""
    alone = {step.tokens: step for step in study.cells.alone}
    rows: list[dict[str, object]] = []
    for here in study.cells.here:
        there = alone.get(here.tokens)
        pairs = zip(here.checksums, here.checksums if there is None else there.checksums, strict=True)
        layers = [layer for layer, (a, b) in enumerate(pairs) if a != b]
        rows.append({"here": here, "alone": there, "layers": layers})
    return rows


def _split(sentence: str) -> tuple[str, str]:
    """An experiment's name and its outcome."""
    name, mark, outcome = sentence.partition(": ")
    return (name, outcome) if mark else ("", sentence)
