"""Crossing: a source is encoded once, and a decoder that looks across at it answers. T5 and BART.

The whole prompt is the source; the decoder starts with its start token, and goes on with the answer. The two halves are
those of transformers. Only the decoder's learned positions are taken out of it and added here: in it, all rows of a batch
stand at one position.

Shapes: B rows, N tokens of the longest source, Q tokens of the decoder, C channels, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from targets.networks.encoding import Encoding


class Crossing(Encoding):
    """An encoder, a decoder, and a head on it.

    Attributes:
        start: The token with which every answer starts.
        places: Of the decoder, one for each position, where they are learned.
    """

    family = "seq2seq"

    def __init__(self, encoder: nn.Module, decoder: nn.Module, head: nn.Module, start: int) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.decoder: Any = decoder
        self.head = head
        self.start = start
        self.config = self.decoder.config
        self.places: Any = getattr(self.decoder, "embed_positions", None)
        if self.places is not None:
            self.decoder.embed_positions = Nowhere()

    def forward(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor | None = None,
        prompt_tokens: int = 1,
        use_cache: bool = False,
        **across: Any,
    ) -> torch.Tensor:
        """One of three questions, all of int64 ids [B, n].

        Args:
            lengths: int64 [B]: the ids are sources, as many of each row as it says. Gives the encoder's output, [B, n, C].
            across: What `answer` takes: the ids are the decoder's. Gives logits [B, n, V].
            prompt_tokens: With neither, the first so many tokens are the source, and the others what was answered so far.
                Gives logits [B, n - prompt_tokens + 1, V].
        """
        if lengths is not None:
            mask = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths[:, None]
            return self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]
        if across:
            return self.answer(input_ids, **across)
        source, answered = input_ids[:, :prompt_tokens], input_ids[:, prompt_tokens:]
        ids = torch.cat([torch.full_like(source[:, :1], self.start), answered], dim=1)
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.answer(ids, positions, self.encoder(input_ids=source).last_hidden_state)

    def answer(self, ids: torch.Tensor, positions: torch.Tensor, source: torch.Tensor, **options: Any) -> torch.Tensor:
        """Logits [B, Q, V] of the decoder's ids [B, Q] at these positions, across from sources [B, N, C].

        Args:
            options: `source_mask`, bool [B, N]; `attention_mask` and `cache`, those of the decoder's own tokens.
        """
        embedded = self.decoder.embed_tokens(ids)
        if self.places is not None:
            embedded = embedded + nn.functional.embedding(positions + self.places.offset, self.places.weight)
        output = self.decoder(
            inputs_embeds=embedded,
            encoder_hidden_states=source,
            encoder_attention_mask=options.pop("source_mask", None),
            use_cache="cache" in options,
            **options,
        )
        return self.head(output.last_hidden_state)  # type: ignore[no-any-return]


class Nowhere(nn.Module):
    """In place of learned positions: they have been added."""

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Nothing, to whatever it is added."""
        return torch.zeros(())
