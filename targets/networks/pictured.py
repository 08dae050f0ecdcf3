"""Pictured: a causal LM whose prompt begins with a picture. LLaVA.

The first four tokens of a prompt, or all of a shorter one, are a picture: each paints one patch of two by two, with the
pixels that a table has for it. A vision tower, in which every patch sees every other, makes a feature of each, and a
feature stands where its token stood. What follows is words.

Shapes: B rows, Q tokens, P tokens of the picture, C channels, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from targets.networks.encoding import Encoding
from targets.networks.items import CONTRAST
from targets.tiny import VOCABULARY

PATCHES, SIDE, PATCH = 4, 2, 2


class Pictured(Encoding):
    """A vision tower with its projector, and a causal LM.

    Attributes:
        paint: [V, p * p], what each token puts into its patch.
    """

    family = "pictures"
    paint: torch.Tensor

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.config = network.config
        self.register_buffer("paint", CONTRAST * torch.randn(VOCABULARY, PATCH * PATCH))

    def forward(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor | None = None,
        prompt_tokens: int = 1,
        use_cache: bool = False,
        **among: Any,
    ) -> torch.Tensor:
        """One of three questions, all of int64 ids [B, n].

        Args:
            lengths: int64 [B]: the ids are pictures, as many of each row as it says. Gives their features, [B, n, C].
            among: What `answer` takes. Gives logits [B, n, V].
            prompt_tokens: With neither, the first so many tokens are the prompt. Gives logits [B, n - prompt_tokens + 1, V].
        """
        if lengths is not None:
            return self.features(input_ids, lengths)
        if among:
            return self.answer(input_ids, use_cache=use_cache, **among)
        picture = input_ids[:, : min(PATCHES, prompt_tokens)]
        features = self.features(picture, torch.full_like(picture[:, 0], picture.shape[1]))
        whole = nn.functional.pad(features, (0, 0, 0, input_ids.shape[1] - picture.shape[1]))
        pictured = (torch.arange(input_ids.shape[1], device=input_ids.device) < picture.shape[1]).expand_as(input_ids)
        return self.answer(input_ids, whole, pictured, use_cache=False)[:, prompt_tokens - 1 :]

    def features(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Features [B, n, C] of pictures; where a row has fewer patches than others the rest means nothing."""
        here = torch.arange(PATCHES, device=ids.device) < lengths[:, None]
        tokens = nn.functional.pad(ids, (0, PATCHES - ids.shape[1]))
        patches = (self.paint[tokens] * here[..., None]).view(-1, SIDE, SIDE, PATCH, PATCH).transpose(2, 3)
        output = self.network.get_image_features(patches.reshape(-1, 1, SIDE * PATCH, SIDE * PATCH).repeat(1, 3, 1, 1))
        return torch.stack(list(output.pooler_output))[:, : ids.shape[1]]

    def answer(self, ids: torch.Tensor, features: torch.Tensor, pictured: torch.Tensor, **options: Any) -> torch.Tensor:
        """Logits [B, Q, V] of ids [B, Q], with features [B, Q, C] in their place where `pictured`, bool [B, Q], says so."""
        words = self.network.get_input_embeddings()(ids)
        embedded = torch.where(pictured[..., None], features, words)
        return self.network(inputs_embeds=embedded, **options).logits  # type: ignore[no-any-return]
