"""The memory plan: the usual formula, and what is allocated is what it says."""

from __future__ import annotations

import pytest
import torch

from targets.decoder import Layout, SlotStore, plan_bytes
from targets.decoder.knobs import knobs_of
from targets.models import LayerPlan, Model, Plan, find_model
from targets.protocol import Setting, with_defaults


def layout_of(model: Model, **settings: Setting) -> Layout:
    return Layout.of(with_defaults(knobs_of(model.plan, "slots"), settings))


def test_24_layers_of_16_heads_of_64_at_2048_positions_in_float16_take_201326592_bytes_a_request() -> None:
    plan = Plan((LayerPlan(16, 64, None),) * 24, "tensor", ("full",) * 24, positions_max=2048, vocabulary=8)
    assert plan_bytes(plan, 1, 2048, torch.float16) == 201_326_592


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"slots": 1, "context_tokens_max": 16},
        {"slots": 7, "context_tokens_max": 33, "dtype": "bfloat16"},
        {"slots": 3, "dtype": "float32", "kv_dtype": "float16"},
        {"slots": 3, "pad_batch": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["tiny", "tiny-gpt2", "tiny-mistral", "tiny-bamba"])
def test_the_plan_is_what_a_fresh_store_allocates(name: str, settings: dict[str, Setting]) -> None:
    model = find_model(name)
    layout = layout_of(model, **settings)
    planned = plan_bytes(model.plan, layout.slots + layout.null, layout.positions, layout.dtype)
    assert SlotStore(model.plan, layout).allocated() == planned


def test_a_ring_takes_less_than_the_plan() -> None:
    model = find_model("tiny-mistral")
    ring = layout_of(model, window="ring", ring_append_max=4)
    (window,) = {layer.window for layer in model.plan.layers}
    assert window is not None
    rooms = plan_bytes(model.plan, ring.slots, window + 3, ring.dtype)
    assert SlotStore(model.plan, ring).allocated() == rooms < plan_bytes(model.plan, ring.slots, ring.positions, ring.dtype)
