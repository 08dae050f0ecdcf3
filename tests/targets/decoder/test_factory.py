from __future__ import annotations

import pytest
import torch

from targets.decoder import DecoderFactory
from targets.models import Model, find_model
from targets.protocol import BadInput, Factory, Target
from tests.targets.decoder.driving import opened


def test_a_factory_and_its_targets_fulfil_the_protocol(slots: DecoderFactory) -> None:
    assert isinstance(slots, Factory)
    assert isinstance(slots.open({}), Target)


def test_targets_share_one_network_and_the_reference_has_its_own(slots: DecoderFactory) -> None:
    assert slots.open({}).runner.network is slots.open({"slots": 1}).runner.network is slots.module({})
    ours, reference = (dict(network.named_parameters()) for network in (slots.module({}), slots.network({})))
    assert not {weight.data_ptr() for weight in ours.values()} & {weight.data_ptr() for weight in reference.values()}
    assert all(torch.equal(weight, reference[name]) for name, weight in ours.items())


def test_the_precision_of_a_network_is_the_one_that_was_set(slots: DecoderFactory) -> None:
    def weight(**settings: str) -> torch.Tensor:
        return next(slots.network(settings).parameters())

    assert weight().dtype is torch.float64
    assert weight(dtype="bfloat16").dtype is torch.bfloat16
    assert torch.equal(weight(weights="bfloat16"), weight(dtype="bfloat16").double())
    assert slots.module({"dtype": "float32"}) is not slots.module({})


def test_no_two_targets_share_a_slab(slots: DecoderFactory) -> None:
    first, second = slots.open({}), slots.open({})
    assert not {slab.data_ptr() for slab in first.store.keys} & {slab.data_ptr() for slab in second.store.keys}


def test_the_context_is_as_long_as_the_knob_says(slots: DecoderFactory) -> None:
    assert slots.context_tokens_max({}) == 256
    assert slots.context_tokens_max({"context_tokens_max": 16}) == 16


def test_a_model_with_column_masks_offers_prompts_alone_only() -> None:
    bloom = find_model("tiny-bloom")
    assert opened(bloom).runner.prefill == "alone"
    with pytest.raises(BadInput) as caught:
        opened(bloom, prefill="mixed")
    assert str(caught.value) == "prefill must be one of alone, got mixed"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"slots": 0}, "slots must be a whole number in 1..1024, got 0"),
        ({"slots": -1}, "slots must be a whole number in 1..1024, got -1"),
        ({"slots": 10**12}, "slots must be a whole number in 1..1024, got 1000000000000"),
        ({"slots": True}, "slots must be a whole number in 1..1024, got True"),
        ({"slot_order": "random"}, "slot_order must be one of lifo, fifo, got random"),
        ({"prefill": "chunked"}, "prefill must be one of mixed, apart, alone, got chunked"),
        ({"context_tokens_max": 1}, "context_tokens_max must be a whole number in 2..2048, got 1"),
        ({"context_tokens_max": 2049}, "context_tokens_max must be a whole number in 2..2048, got 2049"),
        ({"queue_max": -1}, "queue_max must be a whole number in 0..1000000, got -1"),
        ({"admit_max": 0}, "admit_max must be a whole number in 1..1024, got 0"),
        ({"dtype": "float8"}, "dtype must be one of float64, float32, bfloat16, float16, got float8"),
        ({"weights": "int4"}, "weights must be one of same, float64, float32, bfloat16, float16, got int4"),
        (
            {"pages": 4},
            "knob must be one of admit_max, context_tokens_max, device, dtype, kv_dtype, linear, pad_batch, pipelined, "
            "poison, prefill, queue_max, reuse, sanitize, slot_order, slots, speculate, step_tokens_max, trust_bias, "
            "weights, got pages",
        ),
    ],
)
def test_a_setting_that_no_knob_takes_is_refused_in_one_sentence(
    tiny: Model, settings: dict[str, int | str], sentence: str
) -> None:
    with pytest.raises(BadInput) as caught:
        opened(tiny, **settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("device", ["cuda", "tpu", ""])
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is at hand")
def test_a_device_that_is_not_there_is_refused_in_one_sentence(tiny: Model, device: str) -> None:
    with pytest.raises(BadInput) as caught:
        opened(tiny, device=device)
    assert str(caught.value) == f"device must be one of cpu, got {device}"
