"""The tiny networks with an encoder, by name: 2 layers, 320 ids, and weights as wide as in `targets.tiny`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from targets.networks.axial import Axial
from targets.networks.crossing import Crossing
from targets.networks.encoding import Encoding
from targets.networks.items import Films, Pictures, Planes, Series, Texts
from targets.networks.pictured import PATCH, SIDE, Pictured
from targets.tiny import BOS, EOS, PAD, TINY, VOCABULARY

SPREAD = 0.2
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": SPREAD,
}
_IDS: dict[str, Any] = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}


def bert() -> nn.Module:
    """Every word sees every other one; learned positions."""
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=2048, pad_token_id=PAD, **_SIZES)
    return Texts(transformers.BertModel(config, add_pooling_layer=False), 32)


def modernbert() -> nn.Module:
    """A layer whose words see all, then one whose words see eight on either side, by turns; rotary positions."""
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        local_attention=16,
        global_attn_every_n_layers=2,
        cls_token_id=BOS,
        sep_token_id=EOS,
        **_IDS,
        **_SIZES,
    )
    return Texts(transformers.ModernBertModel(config), 32)


def vit() -> nn.Module:
    """A picture of 8 by 8 patches, each of which sees all."""
    config = transformers.ViTConfig(image_size=16, patch_size=2, num_channels=1, **_SIZES)
    return Pictures(transformers.ViTModel(config, add_pooling_layer=False), 32, side=8, patch=2)


def swin() -> nn.Module:
    """The same picture in windows of 4 by 4 patches, which the second layer shifts by two; then patches are merged."""
    config = transformers.SwinConfig(
        image_size=16,
        patch_size=2,
        num_channels=1,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.0,
        drop_path_rate=0.0,
        initializer_range=SPREAD,
    )
    network = Pictures(transformers.SwinModel(config, add_pooling_layer=False), 32, side=8, patch=2, merged=2)
    return _from_zero(network, "relative_position_bias")


def patchtst() -> nn.Module:
    """A series of 64 values in patches of four, each of which sees all; its norms were taken over batches, and stand."""
    config = transformers.PatchTSTConfig(
        num_input_channels=1,
        context_length=64,
        patch_length=4,
        patch_stride=4,
        d_model=32,
        num_attention_heads=4,
        num_hidden_layers=2,
        ffn_dim=64,
        init_std=2 * SPREAD,  # at less, earlier patches hardly count where the last one is read
        scaling=None,
        do_mask_input=False,
    )
    network = Series(transformers.PatchTSTModel(config), 32, places=64, patch=4)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = None  # an average over all that is seen
    with torch.no_grad():  # in training mode, as it is built: from here on the norms have what a trained one has
        network(torch.randint(VOCABULARY, (64, 64)), lengths=torch.randint(1, 65, (64,)))
    return network


def timesformer() -> nn.Module:
    """A film of 8 frames of 2 by 2 patches: each patch sees itself in other frames, then the others in its frame."""
    config = transformers.TimesformerConfig(image_size=4, patch_size=2, num_channels=1, num_frames=8, **_SIZES)
    network = Films(transformers.TimesformerModel(config), 32, frames=8, side=2, patch=2)
    return _from_zero(network, "position_embeddings", "time_embeddings")


def axial() -> nn.Module:
    """A plane of 8 by 8 cells: along rows, then along columns."""
    return Planes(Axial(side=8, channels=32, heads=4, layers=2, spread=2 * SPREAD), 32, side=8)


def _from_zero(network: nn.Module, *names: str) -> nn.Module:
    """The network with random numbers in the weights that have one of these names: zeros, by which places were all alike."""
    for name, weight in network.named_parameters():
        if any(part in name for part in names):
            nn.init.normal_(weight)
    return network


def t5() -> nn.Module:
    """Relative positions, which both halves share between their layers.

    Its norms are torch's own: those of transformers take variances in float32 whatever the network is. In float64 one that
    falls on another side of a rounding, once in a thousand schedules, moves logits by far more than all else does.
    """
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        initializer_factor=2.0,  # at 1, it answers with its start token whatever it is asked
        tie_word_embeddings=False,
        decoder_start_token_id=PAD,
        **_IDS,
    )
    network = transformers.T5ForConditionalGeneration(config)
    for module in list(network.modules()):
        for name, norm in list(module.named_children()):
            if hasattr(norm, "variance_epsilon"):
                exact = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
                exact.weight = norm.weight
                setattr(module, name, exact)
    return _keeping(Crossing(network.encoder, network.decoder, network.lm_head, PAD), 4, 8)


def bart() -> nn.Module:
    """Learned positions."""
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=2048,
        init_std=SPREAD,
        tie_word_embeddings=False,
        decoder_start_token_id=EOS,
        **_IDS,
    )
    network = transformers.BartForConditionalGeneration(config)
    return _keeping(Crossing(network.model.encoder, network.model.decoder, network.lm_head, EOS), 4, 8)


def llava() -> nn.Module:
    """A CLIP tower over pictures of two by two patches, and a Llama."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=SIDE * PATCH,
            patch_size=PATCH,
            initializer_range=SPREAD,
        ),
        text_config=TINY["tiny"](),
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    return _keeping(Pictured(transformers.LlavaForConditionalGeneration(config)), 2, 16)


def _keeping(network: Encoding, heads: int, size: int) -> nn.Module:
    """The network with two layers that keep so many heads of this size."""
    network.kept = ((heads, size),) * 2
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tiny-bert": bert,
    "tiny-modernbert": modernbert,
    "tiny-vit": vit,
    "tiny-swin": swin,
    "tiny-patchtst": patchtst,
    "tiny-timesformer": timesformer,
    "tiny-axial": axial,
    "tiny-t5": t5,
    "tiny-bart": bart,
    "tiny-llava": llava,
}
