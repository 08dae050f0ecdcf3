"""Configs of the tiny models: 2 layers, hidden 64, a vocabulary of 256 bytes and specials. Nothing is downloaded.

A larger one beside them is for measuring speed at a size where a step is arithmetic rather than calls.

`initializer_range` 0.2 makes every token count: at the usual 0.02, six of a hundred one-token changes of a prompt change
nothing. Embeddings are not tied, for the same reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import transformers

VOCABULARY = 320
BOS, EOS, PAD = 256, 257, 258


def _llama_like(config: Callable[..., Any], **changes: Any) -> Callable[[], Any]:
    """A config of the Llama family; initializer_range 0.2 makes every token count."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    return functools.partial(config, **{**settings, **changes})


TINY: dict[str, Callable[[], Any]] = {
    "tiny": _llama_like(transformers.LlamaConfig),
    # K beyond the range of float16 and within that of bfloat16, at queries as much smaller: what a real model has in a few
    # channels. (What a config may say beyond its own fields, `targets.models` reads back.)
    "tiny-loud": _llama_like(transformers.LlamaConfig, key_scale=2.0**15),
    "tiny-qwen2": _llama_like(transformers.Qwen2Config),
    "tiny-qwen3": _llama_like(transformers.Qwen3Config, head_dim=16),
    "tiny-gemma3": _llama_like(
        transformers.Gemma3TextConfig,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "tiny-mistral": _llama_like(transformers.MistralConfig, sliding_window=16),
    # Positions see their own chunk of 16 in the first layer, and all in the second, which has no rotary positions.
    "tiny-llama4": _llama_like(
        transformers.Llama4TextConfig,
        head_dim=16,
        intermediate_size_mlp=128,
        attention_chunk_size=16,
        no_rope_layers=[1, 0],
        moe_layers=[],
        attn_temperature_tuning=False,
    ),
    "tiny-mixtral": _llama_like(transformers.MixtralConfig, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "tiny-phi3": _llama_like(transformers.Phi3Config, sliding_window=None),
    "tiny-neox": _llama_like(transformers.GPTNeoXConfig),
    "tiny-gpt2": functools.partial(
        transformers.GPT2Config,
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=2048,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
    ),
    "tiny-opt": functools.partial(
        transformers.OPTConfig,
        vocab_size=VOCABULARY,
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
        init_std=0.2,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    ),
    "tiny-bloom": functools.partial(
        transformers.BloomConfig,
        vocab_size=VOCABULARY,
        hidden_size=64,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    ),
    "tiny-mamba": functools.partial(
        transformers.MambaConfig,
        vocab_size=VOCABULARY,
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    ),
    "tiny-bamba": _llama_like(
        transformers.BambaConfig,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_chunk_size=16,
    ),
    "tiny-olmo-hybrid": _llama_like(
        transformers.OlmoHybridConfig,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
    ),
}

LARGER: dict[str, Callable[[], Any]] = {
    "random-50m": functools.partial(
        transformers.LlamaConfig,
        vocab_size=32_000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    ),
}
"""A random network of 51.7 million parameters."""
