"""Items: encoder-only networks. A request is one item, and its answer is read off in one forward.

The answer's tokens are items that grow: what comes behind the first token is the answer to the item with that token at its
end, encoded anew from the beginning. Nothing is kept from one forward to the next.

What a token stands for:

- *texts*: a word.
- *grids*: the n-th token paints the n-th patch of a picture, or frame by frame of a film, with the pixels that a table has
  for it; what is not painted is blank, and of more tokens than there are patches the last ones count.
- *series*: the n-th token is the n-th value of a series, a number that a table has for it; what is missing is told as such.

Shapes: B rows, T tokens of the longest item, G patches or values, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from targets.networks.encoding import Encoding
from targets.tiny import VOCABULARY

CONTRAST = 4.0
"""Of what tokens paint, against the blank: at 1, seven of twelve changes of a token change what a ViT answers."""


class Items(Encoding, ABC):
    """An encoder with a head on it."""

    family = "encoder"
    kept = ((1, 1),)  # of each token its id, until the item is whole

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.config = getattr(encoder, "config", None)
        self.score = nn.Linear(width, VOCABULARY, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor | None = None,
        prompt_tokens: int = 1,
        use_cache: bool = False,
    ) -> torch.Tensor:
        """Answers of a batch of items.

        Args:
            input_ids: int64 [B, T].
            lengths: int64 [B]: as many tokens of each row are its item, the others mean nothing. Gives logits [B, V].
            prompt_tokens: Without lengths all rows are whole, and each token from the last of the prompt on has logits of
                its own, those of the item that ends with it: [B, T - prompt_tokens + 1, V].
        """
        if lengths is not None:
            return self.answer(input_ids, lengths, padded=True)
        ends = range(prompt_tokens, input_ids.shape[1] + 1)
        whole = torch.full_like(input_ids[:, 0], 0)
        return torch.stack([self.answer(input_ids[:, :end], whole + end, padded=False) for end in ends], dim=1)

    @abstractmethod
    def answer(self, ids: torch.Tensor, lengths: torch.Tensor, padded: bool) -> torch.Tensor:
        """Logits [B, V] of items that are the first `lengths` of ids [B, T]; all of them where nothing is padded."""


class Texts(Items):
    """Words: the answer is read at the last one."""

    def answer(self, ids: torch.Tensor, lengths: torch.Tensor, padded: bool) -> torch.Tensor:
        """Logits [B, V]."""
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]) if padded else None
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.score(hidden[torch.arange(len(ids), device=ids.device), lengths - 1])  # type: ignore[no-any-return]


class Grids(Items):
    """What takes a fixed number of places, each of which a token may fill.

    Attributes:
        places: G.
        paint: [V, n], what each token puts there.
    """

    paint: torch.Tensor

    def __init__(self, encoder: nn.Module, width: int, places: int, numbers: int) -> None:
        super().__init__(encoder, width)
        self.places = places
        self.register_buffer("paint", CONTRAST * torch.randn(VOCABULARY, numbers))

    def lay_out(self, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What stands in each place, [B, G, n], and whether it is an item's own: bool [B, G]; the rest is blank."""
        where = (lengths - self.places).clamp(min=0)[:, None] + torch.arange(self.places, device=ids.device)  # [B, G]
        here = where < lengths[:, None]
        tokens = ids.gather(1, where.clamp(max=ids.shape[1] - 1))
        return self.paint[tokens] * here[..., None], here

    def last(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Of hidden states [B, G, C], those of the last place that is an item's own: [B, C]."""
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths.clamp(max=self.places) - 1]


class Pictures(Grids):
    """Patches of a square picture of one channel; read at the last one painted, or at what it was merged into.

    Attributes:
        merged: So many patches, each way, come out as one.
    """

    def __init__(self, encoder: nn.Module, width: int, side: int, patch: int, merged: int = 1) -> None:
        super().__init__(encoder, width, side * side, patch * patch)
        self.side, self.patch, self.merged = side, patch, merged

    def pixels(self, painted: torch.Tensor) -> torch.Tensor:
        """Patches [B, G, p * p] as a picture [B, 1, side * p, side * p]."""
        side, patch = self.side, self.patch
        rows = painted.view(-1, side, side, patch, patch).transpose(2, 3)
        return rows.reshape(-1, 1, side * patch, side * patch)

    def answer(self, ids: torch.Tensor, lengths: torch.Tensor, padded: bool) -> torch.Tensor:
        """Logits [B, V]."""
        painted, _ = self.lay_out(ids, lengths)
        side = self.side // self.merged
        hidden = self.encoder(pixel_values=self.pixels(painted)).last_hidden_state[:, -side * side :]
        hidden = hidden.unflatten(1, (side, side)).repeat_interleave(self.merged, 1).repeat_interleave(self.merged, 2)
        return self.score(self.last(hidden.flatten(1, 2), lengths))  # type: ignore[no-any-return]


class Films(Grids):
    """Patches of the frames of a film, the first frame first; read at the last one painted."""

    def __init__(self, encoder: nn.Module, width: int, frames: int, side: int, patch: int) -> None:
        super().__init__(encoder, width, frames * side * side, patch * patch)
        self.frames, self.side, self.patch = frames, side, patch

    def answer(self, ids: torch.Tensor, lengths: torch.Tensor, padded: bool) -> torch.Tensor:
        """Logits [B, V]."""
        painted, _ = self.lay_out(ids, lengths)
        side, patch = self.side, self.patch
        rows = painted.view(-1, self.frames, side, side, patch, patch).transpose(3, 4)
        film = rows.reshape(-1, self.frames, 1, side * patch, side * patch)
        hidden = self.encoder(pixel_values=film).last_hidden_state[:, 1:]
        # Behind the first state, which is the whole's, the frames of each patch stand together.
        hidden = hidden.view(len(ids), side * side, self.frames, -1).transpose(1, 2).flatten(1, 2)
        return self.score(self.last(hidden, lengths))  # type: ignore[no-any-return]


class Series(Grids):
    """Values of a series of one channel, which the encoder takes in patches; read at the last patch with a value in it."""

    def __init__(self, encoder: nn.Module, width: int, places: int, patch: int) -> None:
        super().__init__(encoder, width, places, 1)
        self.patch = patch

    def answer(self, ids: torch.Tensor, lengths: torch.Tensor, padded: bool) -> torch.Tensor:
        """Logits [B, V]."""
        values, here = self.lay_out(ids, lengths)
        output = self.encoder(past_values=values, past_observed_mask=here[..., None])
        hidden = output.last_hidden_state[:, 0].repeat_interleave(self.patch, dim=1)
        return self.score(self.last(hidden, lengths))  # type: ignore[no-any-return]


class Planes(Grids):
    """Cells of a plane, for an encoder that is told which of them are an item's own; read at the last of those."""

    def __init__(self, encoder: nn.Module, width: int, side: int) -> None:
        super().__init__(encoder, width, side * side, width)
        self.side = side

    def answer(self, ids: torch.Tensor, lengths: torch.Tensor, padded: bool) -> torch.Tensor:
        """Logits [B, V]."""
        cells, here = self.lay_out(ids, lengths)
        shape = (len(ids), self.side, self.side)
        hidden = self.encoder(cells.view(*shape, -1), here.view(shape)).flatten(1, 2)
        return self.score(self.last(hidden, lengths))  # type: ignore[no-any-return]
