"""What was served is what the endpoint said, unless the user says otherwise; it never chooses code or files."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from stress.judging.loaded import Loaded, Named, read_loaded, settings_of, spec_of
from stress.offer import Offer
from targets.decoder import DecoderFactory
from targets.protocol import BadInput
from targets.registry import TargetSpec

NOTHING = Named(None, None, ())
OFFER = Offer("pages", "tiny-gpt2", ("late-token",), {"slots": 2, "dtype": "float32"})


@pytest.mark.parametrize(
    ("user", "spec"),
    [
        (NOTHING, TargetSpec("pages", "tiny-gpt2", ("late-token",))),
        (Named("pages", None, ()), TargetSpec("pages", "tiny-gpt2", ("late-token",))),
        (Named(None, "tiny", ()), TargetSpec("pages", "tiny", ("late-token",))),
        (Named(None, None, ("stale-length",)), TargetSpec("pages", "tiny-gpt2", ("stale-length",))),
        (Named("slots", None, ()), TargetSpec("slots", "tiny", ())),
    ],
    ids=["nothing", "the same", "model", "fault", "another target"],
)
def test_what_the_user_says_wins(user: Named, spec: TargetSpec) -> None:
    assert spec_of(user, OFFER) == spec


def test_without_an_offer_the_default_is_served() -> None:
    assert spec_of(NOTHING, None) == TargetSpec()


def test_knobs_are_the_users_and_then_the_endpoints(slots: DecoderFactory) -> None:
    assert settings_of(NOTHING, OFFER, slots, (), {}) == {"slots": 2, "dtype": "float32"}
    assert settings_of(NOTHING, OFFER, slots, ("slots=8",), {"dtype": "float64"}) == {"slots": 8, "dtype": "float64"}
    assert settings_of(Named("slots", None, ()), OFFER, slots, (), {}) == {}, "of another target it says nothing"
    with pytest.raises(BadInput, match=r"slots must be a whole number in 1\.\.1024, got 0"):
        settings_of(NOTHING, msgspec.structs.replace(OFFER, settings={"slots": 0}), slots, (), {})


@pytest.mark.parametrize(
    ("offer", "user", "message"),
    [
        (
            Offer("os:getcwd", "tiny"),
            NOTHING,
            "--target must be given, as what is served is no target of slotfuzz's own, got ",
        ),
        (Offer("slots", "/etc"), NOTHING, "--model must be given, as what is served is a file, got "),
    ],
)
def test_an_endpoint_chooses_neither_code_nor_files(offer: Offer, user: Named, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        spec_of(user, offer)


def test_a_run_says_what_was_served_and_another_folder_nothing(tmp_path: Path) -> None:
    assert read_loaded(tmp_path) == Loaded()
    path = tmp_path / "run.json"
    path.write_bytes(msgspec.json.encode({"seed": 1, "dialect": "vllm", "served": OFFER}))
    assert read_loaded(tmp_path) == Loaded("vllm", OFFER)
    path.write_bytes(b'{"served": 1}')
    with pytest.raises(BadInput, match=r"FOLDER must be one whose run\.json can be read, got "):
        read_loaded(tmp_path)
