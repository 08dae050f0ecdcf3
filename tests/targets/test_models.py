from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from targets.models import DTYPES, REACTIVITY_MIN, Model, StatePlan, find_model, logits_of, reactivity, tiny_names
from targets.protocol import BadInput
from targets.tiny import VOCABULARY

PROMPT = torch.tensor([[5, 80, 3, 3, 200, 17, 41]])
UNLOADABLE = "model must be a causal LM that transformers can load, got "


def loaded(name: str) -> Any:
    """A tiny model's network in float32."""
    return find_model(name).load("float32", "float32", "cpu")


def logits(network: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return logits_of(network(input_ids=PROMPT, use_cache=False))


@pytest.mark.parametrize("name", tiny_names())
def test_every_tiny_model_reacts_to_its_prompt(name: str) -> None:
    changed, tried = reactivity(find_model(name).load("float64", "float64", "cpu"), VOCABULARY)
    assert tried == 12
    assert changed >= REACTIVITY_MIN * tried


def test_a_tiny_gemma3_with_tied_embeddings_is_too_mute_to_convict() -> None:
    config = loaded("tiny-gemma3").config
    config.tie_word_embeddings = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tied = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    changed, tried = reactivity(tied, VOCABULARY)
    assert changed < REACTIVITY_MIN * tried


def test_reactivity_of_a_network_that_does_not_listen_is_zero() -> None:
    class Mute(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
            return torch.arange(9.0).expand(*input_ids.shape, 9)

    assert reactivity(Mute(), 9, changes=4, new_tokens=2) == (0, 4)


def test_a_model_is_the_same_every_time_it_is_built(tiny: Model) -> None:
    again = find_model("tiny")
    assert again.identity == tiny.identity
    assert torch.equal(logits(again.load("float64", "float64", "cpu")), logits(tiny.load("float64", "float64", "cpu")))


def test_models_have_names_of_their_own() -> None:
    assert len({find_model(name).identity for name in tiny_names()}) == len(tiny_names())


def test_each_load_is_in_memory_of_its_own_and_learns_nothing(tiny: Model) -> None:
    first, second = (tiny.load("float64", "float64", "cpu") for _ in range(2))
    assert not {weight.data_ptr() for weight in first.parameters()} & {weight.data_ptr() for weight in second.parameters()}
    assert not first.training
    assert not any(weight.requires_grad for weight in first.parameters())


def test_building_a_model_leaves_the_random_numbers_of_others_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    find_model("tiny")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("narrow", ["float32", "bfloat16", "float16"])
def test_weights_that_are_rounded_and_upcast_equal_the_rounded_ones(tiny: Model, narrow: str) -> None:
    upcast, rounded = tiny.load("float64", narrow, "cpu"), tiny.load(narrow, narrow, "cpu")
    for name, weight in upcast.named_parameters():
        assert weight.dtype is torch.float64
        assert torch.equal(weight, rounded.get_parameter(name).double()), name
    exact = tiny.load("float64", "float64", "cpu")
    assert torch.equal(logits(upcast), logits(exact)) == (narrow == "float32")


@pytest.mark.slow
def test_a_model_from_a_folder_gives_the_same_logits(tiny: Model, tmp_path: Path) -> None:
    network = loaded("tiny")
    network.save_pretrained(tmp_path)
    found = find_model(str(tmp_path))
    assert torch.equal(logits(found.load("float32", "float32", "cpu")), logits(network))
    assert (found.name, found.plan, found.special_ids) == (tmp_path.name, tiny.plan, tiny.special_ids)


def test_every_end_token_of_a_folder_is_special(tmp_path: Path) -> None:
    save(tmp_path, eos_token_id=[257, 300])
    assert find_model(str(tmp_path)).special_ids == (256, 257, 258, 300)


def test_a_model_from_a_gguf_file_gives_the_same_logits(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'slotfuzz[gemma]'")
    network = loaded("tiny-qwen2")
    config = network.config
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in network.state_dict().items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = find_model(str(path))
    assert torch.equal(logits(found.load("float32", "float32", "cpu")), logits(network))
    assert found.name == "small"


@pytest.mark.parametrize("name", ["x9", ""])
def test_an_unknown_model_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        find_model(name)
    assert str(caught.value) == (
        "model must be one of tiny, tiny-loud, tiny-qwen2, tiny-qwen3, tiny-gemma3, tiny-mistral, tiny-llama4, "
        "tiny-mixtral, tiny-phi3, tiny-neox, tiny-gpt2, tiny-opt, tiny-bloom, tiny-mamba, tiny-bamba, tiny-olmo-hybrid, "
        "tiny-bert, tiny-modernbert, tiny-vit, tiny-swin, tiny-patchtst, tiny-timesformer, tiny-axial, tiny-t5, "
        "tiny-bart, tiny-llava, random-50m, gemma3-270m, a folder with a config.json, or a .gguf file, "
        f"got {name} (--model)"
    )


def test_a_mistyped_model_is_answered_with_those_that_were_meant() -> None:
    with pytest.raises(BadInput) as caught:
        find_model("tyni-gpt2")
    assert str(caught.value).startswith("model must be tiny-gpt2, ")
    assert "there are, a folder with a config.json, or a .gguf file, got tyni-gpt2 (--model)" in str(caught.value)


@pytest.mark.parametrize(("dtype", "weights"), [("int8", "float64"), ("float64", "int8")])
def test_an_unknown_dtype_is_refused_in_one_sentence(tiny: Model, dtype: str, weights: str) -> None:
    with pytest.raises(BadInput) as caught:
        tiny.load(dtype, weights, "cpu")
    assert str(caught.value) == "dtype must be one of float64, float32, bfloat16, float16, got int8"


def save(path: Path, **changes: object) -> None:
    """Writes the default model as a folder, with some settings of its config changed."""
    loaded("tiny").save_pretrained(path)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))


def cut_weights(path: Path) -> None:
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("changes", "damage"),
    [
        pytest.param({"model_type": "no-such"}, None, id="unknown architecture"),
        pytest.param({"model_type": "t5"}, None, id="no causal LM", marks=pytest.mark.slow),
        pytest.param({"hidden_size": 32}, None, id="weights of another shape"),
        pytest.param({"num_hidden_layers": 3}, None, id="weights of a layer missing"),
        pytest.param({"num_attention_heads": 3}, None, id="config that contradicts itself"),
        pytest.param({}, lambda path: (path / "config.json").write_text("{"), id="config cut short"),
        pytest.param({}, lambda path: (path / "model.safetensors").unlink(), id="no weights"),
        pytest.param({}, cut_weights, id="weights cut short"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_in_one_sentence(
    tmp_path: Path, changes: dict[str, object], damage: Callable[[Path], object] | None
) -> None:
    save(tmp_path, **changes)
    if damage is not None:
        damage(tmp_path)
    with pytest.raises(BadInput) as caught:
        find_model(str(tmp_path))
    assert str(caught.value).startswith(f"{UNLOADABLE}{tmp_path} (")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a gguf file"])
def test_a_gguf_file_that_cannot_be_loaded_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'slotfuzz[gemma]'")
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        find_model(str(path))
    assert str(caught.value).startswith(f"{UNLOADABLE}{path} (")


def test_every_dtype_that_is_offered_can_be_loaded(tiny: Model) -> None:
    for name, dtype in DTYPES.items():
        assert next(tiny.load(name, name, "cpu").parameters()).dtype is dtype


def test_a_plan_says_how_masks_and_windows_work() -> None:
    plans = {name: find_model(name).plan for name in tiny_names()}
    assert {name: plan.masks for name, plan in plans.items() if plan.masks != "tensor"} == {
        "tiny-gemma3": "by-type",
        "tiny-llama4": "by-type",
        "tiny-bloom": "columns",
        "tiny-mamba": "none",
    }
    windows = {name: tuple(layer.window for layer in plan.layers) for name, plan in plans.items()}
    assert {name: layers for name, layers in windows.items() if any(layers)} == {
        "tiny-gemma3": (16, None),
        "tiny-mistral": (16, 16),
    }
    chunks = {name: tuple(layer.chunk for layer in plan.layers) for name, plan in plans.items()}
    assert {name: layers for name, layers in chunks.items() if any(layers)} == {"tiny-llama4": (16, None)}
    assert {plan.vocabulary for plan in plans.values()} == {VOCABULARY}
    assert {name: plan.attending for name, plan in plans.items() if plan.attending != (0, 1)} == {
        "tiny-mamba": (),
        "tiny-bamba": (1,),
        "tiny-olmo-hybrid": (1,),
    }
    recurrent = {"tiny-mamba", "tiny-bamba", "tiny-olmo-hybrid"}
    assert {name for name, plan in plans.items() if plan.prompts_alone} == {"tiny-bloom", *recurrent}
    assert {name for name, plan in plans.items() if not plan.continues} == {"tiny-mamba"}


def test_a_plan_says_which_states_a_layer_keeps_and_in_which_dtype() -> None:
    below, above = find_model("tiny-olmo-hybrid").plan.layers
    assert below.states == (StatePlan("conv", 0, (128, 4), None), StatePlan("recurrent", 0, (2, 16, 32), "float32"))
    assert (below.heads, above.heads, above.states) == (0, 2, ())
    assert not find_model("tiny").plan.recurrent
