from __future__ import annotations

import pytest

from targets import attention
from targets.adapters import ADAPTERS
from targets.faults import FAULTS, QUIRKS
from targets.protocol import BadInput, Factory
from targets.registry import TARGETS, TargetSpec, build, default_model

KNOWN = ", ".join((*TARGETS, *ADAPTERS))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            TargetSpec(target="slot"),
            f"target must be slots or another of the {len(TARGETS | ADAPTERS)} there are, or package.module:factory, "
            "got slot (--target)",
        ),
        (TargetSpec(target=""), f"target must be one of {KNOWN}, or package.module:factory, got  (--target)"),
        (
            TargetSpec(target="targets.attention:shared", faults=("starved",)),
            "fault must be left out for a target of your own, got starved (--fault)",
        ),
        (
            TargetSpec(target="no_such_module:factory"),
            "target must be package.module:factory that can be imported and called, got no_such_module:factory "
            "(ModuleNotFoundError: No module named 'no_such_module')",
        ),
        (
            TargetSpec(target="targets.attention:no_such"),
            "target must be package.module:factory that can be imported and called, got targets.attention:no_such "
            "(AttributeError: module 'targets.attention' has no attribute 'no_such')",
        ),
        (
            TargetSpec(target="targets.attention:VOCABULARY"),
            "target must be a targets.protocol.Factory, got int, without context_tokens_max, control, identity, knobs, "
            "module, name, network, open, special_ids, vocabulary (targets.attention:VOCABULARY)",
        ),
        (
            TargetSpec(faults=("starved", "stale-lengths")),
            "fault must be stale-length, old-lengths, unaligned-lengths or another of the "
            f"{len(FAULTS | QUIRKS)} there are, got stale-lengths (--fault)",
        ),
        (
            TargetSpec(faults=("q7",)),
            f"fault must be one of {', '.join((*FAULTS, *QUIRKS))}, got q7 (--fault)",
        ),
    ],
)
def test_a_target_that_cannot_be_built_is_refused_in_one_sentence(spec: TargetSpec, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(spec)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", [":factory", "targets.attention:", ":", "targets..attention:shared"])
def test_half_a_path_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"^target must be"):
        build(TargetSpec(target=name))


def test_a_target_of_ones_own_is_built_from_its_path() -> None:
    built = build(TargetSpec(target="targets.attention:honest"))
    assert isinstance(built, Factory)
    assert built.identity == attention.honest().identity


def test_the_built_in_target_is_the_default() -> None:
    built = build(TargetSpec())
    assert (built.name, built.vocabulary) == ("slots", 320)


def test_a_spec_gives_back_the_words_it_was_asked_with() -> None:
    assert TargetSpec().arguments() == []
    spec = TargetSpec(target="slots", model="tiny-bloom", faults=("starved", "late-token"))
    assert spec.arguments() == ["--model", "tiny-bloom", "--fault", "starved", "--fault", "late-token"]
    assert TargetSpec(target="a.b:c").arguments() == ["--target", "a.b:c"]


def test_a_fault_names_the_model_on_which_it_shows() -> None:
    assert default_model([]) == "tiny"
    assert default_model(["position-restarts"]) == "tiny"
