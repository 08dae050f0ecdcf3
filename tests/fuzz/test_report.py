"""The report says which checks had nothing to ask, so that none of them passes in silence."""

from __future__ import annotations

from fuzz.report import checks_without_question
from targets.attention import honest
from targets.protocol import CheckName, Control
from targets.registry import TargetSpec, build


def test_a_check_that_has_nothing_to_look_at_is_named_with_its_reason() -> None:
    assert checks_without_question(honest().control, sanitized=False) == {
        CheckName.OWNERSHIP: "it gives no account",
        CheckName.WARMTH: "nothing is shared",
        CheckName.PROVENANCE: "no shadow tags",
        CheckName.RESIDUE: "no poison",
    }
    assert checks_without_question(Control(stepped=False), sanitized=False)[CheckName.SWAP] == "not stepped: only suspects"


def test_the_sanitizer_leaves_nothing_unasked_where_something_is_shared() -> None:
    for target in ("pages", "seq2seq", "pictures"):
        control = build(TargetSpec(target=target)).control
        assert checks_without_question(control, sanitized=True) == {}
        hidden = dict.fromkeys((CheckName.PROVENANCE, CheckName.RESIDUE), "without --sanitize")
        assert checks_without_question(control, sanitized=False) == hidden
    encoder = build(TargetSpec(target="encoder")).control
    assert checks_without_question(encoder, sanitized=True) == {CheckName.WARMTH: "nothing is shared"}
