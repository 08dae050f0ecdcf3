"""Packed linear layers compute what plain ones do, and only where that is possible."""

import pytest
import torch
from torch import nn

from targets.decoder.packed import PackedLinear, pack
from targets.protocol import BadInput
from targets.registry import TargetSpec, build
from tests.targets.decoder.driving import drain, request, submit, tokens

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_a_plain_ones_sums_up_to_rounding(dtype: torch.dtype, rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(96, 160, bias=bias).to(dtype).requires_grad_(False)
    inputs = torch.randn(2, rows, 96).to(dtype)
    exact = nn.functional.linear(inputs.double(), plain.weight.double(), plain.bias.double() if bias else None)
    with torch.inference_mode():
        error = (PackedLinear(plain)(inputs).double() - exact).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps * exact.abs().max()


def test_a_packed_layer_gives_its_weights_back_when_asked() -> None:
    plain = nn.Linear(24, 40).requires_grad_(False)
    assert torch.equal(PackedLinear(plain).weight, plain.weight)


def test_packing_reaches_every_linear_layer_and_nothing_else() -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))).requires_grad_(False)
    kinds = [type(module).__name__ for module in pack(network).modules()]
    assert kinds == ["Sequential", "PackedLinear", "Sequential", "PackedLinear", "LayerNorm"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny", "tiny-gemma3", "tiny-mixtral"])
def test_packed_weights_change_no_answer(model: str) -> None:
    factory = build(TargetSpec(target="slots", model=model))
    answers = []
    for linear in ("plain", "packed"):
        decoder = factory.open({"dtype": "float32", "linear": linear})
        submit(decoder, *(request(*range(3 + index, 12 + 2 * index), new=6) for index in range(4)))
        answers.append(tokens(drain(decoder)))
    assert answers[0] == answers[1]


def test_the_reference_never_shares_the_packed_layers() -> None:
    factory = build(TargetSpec(target="slots", model="tiny"))
    network = factory.network({"dtype": "float32", "linear": "packed"})
    assert not any(isinstance(module, PackedLinear) for module in network.modules())


@pytest.mark.slow
def test_small_networks_stay_plain_and_large_ones_are_packed_by_themselves() -> None:
    found = {
        model: any(isinstance(module, PackedLinear) for module in factory.module({"dtype": "float32"}).modules())
        for model in ("tiny", "random-50m")
        if (factory := build(TargetSpec(target="slots", model=model)))
    }
    assert found == {"tiny": False, "random-50m": True}


def test_packing_is_refused_where_there_are_no_kernels_for_the_dtype() -> None:
    factory = build(TargetSpec(target="slots", model="tiny"))
    with pytest.raises(BadInput) as refused:
        factory.open({"dtype": "float64", "linear": "packed"})
    assert str(refused.value) == (
        "linear must be auto or plain unless dtype is float32 or bfloat16 and device is cpu, "
        "got packed (dtype float64 on cpu)"
    )
