"""tiny-llama: one small random model in the forms that engines read. Random, so no licence but this project's.

Llama, 2 layers, hidden 128, 4 heads on 2 K,V heads, vocabulary 320 (256 bytes and specials), initializer_range 0.15, seed
0, float32. The weights are stored once, in `hf/`; the other forms are assembled from them, byte for byte as their own tools
wrote them: GGUF by the `gguf` package (rows of q and k in llama.cpp's rotary order), OpenVINO by optimum-intel's export.
Both sums are checked.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

HERE = Path(__file__).parent
HF = HERE / "hf"
VOCABULARY = 320
SPECIAL_IDS = (256, 257, 258, 259)
"""Begin, end, padding, unknown: texts of them are not shown, so that no text can stop at one."""
CONTEXT_TOKENS_MAX = 2048
IDENTITY = "tiny-llama, 370 thousand random parameters, seed 0"
GGUF_SHA256 = "51b26443fdfc55e0315f432106ff88f44eced9be7edcbf3f5f69cdd4aaa28264"
OPENVINO_SHA256 = "5e73bc722aa045d49889ea6b59bb113ff9e97c70a5730e9516b7dfe8180a6dc7"

_NORM = "model.norm.weight"
"""All norms are ones, in every layer."""
_GGUF_LAYER = (
    "mlp.down_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "",
    "self_attn.k_proj",
    "self_attn.o_proj",
    "self_attn.q_proj",
    "self_attn.v_proj",
)
_OPENVINO: tuple[tuple[str, str], ...] = (
    ("00000000000000000000000002000000000000002000000000000000", "model.embed_tokens.weight"),
    ("0000803f00000040ffffffffffffffffbd378635", "model.layers.0.self_attn.q_proj.weight"),
    (
        "000000000000000000000000000000000400000000000000200000000000000000000000020000000100000003000000"
        "0000803f9af50f3f9be8a13e8718363ecdcccc3dc255663de386013d39ad913c0ad7233c9c44b83b383e4f3b2815e93a"
        "6f12833a166a133a60cba53953773a3901000000000000000000000002000000010000001000000000000000ffffffff"
        "ffffff7f0300000000000000ffffffff",
        "model.layers.0.self_attn.k_proj.weight",
    ),
    (
        "000000000000000000000000000000000200000000000000200000000000000000000000000000000100000000000000"
        "00000000000000000400000000000000ffffffffffffffff2000000000000000",
        "model.layers.0.self_attn.v_proj.weight",
    ),
    ("010100000000e07fc7f304353e000000000000000000000000000000008000000000000000", "model.layers.0.self_attn.o_proj.weight"),
    ("", "model.layers.0.mlp.gate_proj.weight"),
    ("", "model.layers.0.mlp.up_proj.weight"),
    ("", "model.layers.0.mlp.down_proj.weight"),
    ("", "model.layers.1.self_attn.v_proj.weight"),
    ("", "model.layers.1.self_attn.k_proj.weight"),
    ("", "model.layers.1.self_attn.q_proj.weight"),
    ("", "model.layers.1.self_attn.o_proj.weight"),
    ("", "model.layers.1.mlp.gate_proj.weight"),
    ("", "model.layers.1.mlp.up_proj.weight"),
    ("", "model.layers.1.mlp.down_proj.weight"),
    ("", "lm_head.weight"),
    ("", ""),
)
"""(constants between the weights, as hex; the weight that follows)."""


def network() -> nn.Module:
    """The model in transformers, in float32, in fresh memory: the plain torch loop that every engine is held against."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(HF, dtype=torch.float32)
    return model.requires_grad_(False).eval()


def write_gguf(path: Path) -> Path:
    """Writes the model as one GGUF file."""
    return _written(path, _gguf(), GGUF_SHA256)


def write_openvino(folder: Path) -> Path:
    """Writes the model as a folder that OpenVINO GenAI reads."""
    shutil.copytree(HERE / "openvino", folder, dirs_exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(HF / name, folder / name)
    _written(folder / "openvino_model.bin", _openvino(), OPENVINO_SHA256)
    return folder


def write_hf(folder: Path) -> Path:
    """Copies the model as a folder that transformers reads."""
    shutil.copytree(HF, folder, dirs_exist_ok=True)
    return folder


def _gguf() -> Iterator[bytes]:
    weights = load_file(HF / "model.safetensors")
    yield (HERE / "gguf.head").read_bytes()
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        yield _bytes(weights[name])
    for layer in range(2):
        yield _bytes(weights[_NORM])
        for part in _GGUF_LAYER:
            name = f"model.layers.{layer}.{part}.weight" if part else _NORM
            weight = weights[name]
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = len(weight) // 32
                weight = weight.view(heads, 2, 16, -1).transpose(1, 2).reshape(weight.shape)
            yield _bytes(weight)
    yield _bytes(weights[_NORM])


def _openvino() -> Iterator[bytes]:
    weights = load_file(HF / "model.safetensors")
    for constants, name in _OPENVINO:
        yield bytes.fromhex(constants)
        if name:
            yield _bytes(weights[name])


def _bytes(weight: torch.Tensor) -> bytes:
    return weight.contiguous().numpy().tobytes()


def _written(path: Path, parts: Iterator[bytes], wanted: str) -> Path:
    data = b"".join(parts)
    assert hashlib.sha256(data).hexdigest() == wanted, f"{path.name} is not what its own tool wrote"
    path.write_bytes(data)
    return path
