"""K and V in a dtype of their own: judged by what that dtype rounds, and never taken for a leak."""

from __future__ import annotations

import pytest

from fuzz.conductor import run_trio
from fuzz.judge import Judge
from targets.decoder import DecoderFactory
from targets.models import find_model
from targets.protocol import Kind, Setting
from tests.oracle.handmade import LIFE


def kinds(model: str, **settings: Setting) -> set[Kind]:
    schedule = type(LIFE)(ops=LIFE.ops, settings={"slots": 3, **settings})
    return {found.kind for found in run_trio(Judge(DecoderFactory(find_model(model))).judge, schedule).findings}


@pytest.mark.slow
@pytest.mark.parametrize("cells", ["float16", "bfloat16", "float32"])
def test_narrow_cells_alone_are_no_finding(cells: str) -> None:
    assert kinds("tiny", kv_dtype=cells) == set()
    assert kinds("tiny", kv_dtype=cells, dtype="float32") == set()


@pytest.mark.slow
def test_float16_cells_overflow_where_bfloat16_and_float32_do_not() -> None:
    assert kinds("tiny-loud", dtype="float32", kv_dtype="float16") == {Kind.NONFINITE}
    assert kinds("tiny-loud", dtype="float32", kv_dtype="bfloat16") == set()
    assert kinds("tiny-loud", dtype="float32") == set()
