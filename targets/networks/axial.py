"""Axial attention: along the rows of a plane, then along its columns, each with projections and a norm of its own.

Shapes: B planes, N by N cells, H heads, D head size, C = H D channels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Along(nn.Module):
    """Attention along one axis: of each line of cells, among themselves."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(channels)
        self.project = nn.Linear(channels, 3 * channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)

    def forward(self, lines: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        """Takes lines [B, N, n, C] and which cells count, bool [B, N, n]; a cell always sees itself."""
        queries, keys, values = self.projected(lines)
        itself = torch.eye(lines.shape[2], dtype=torch.bool, device=lines.device)
        mask = (here[..., None, :] | itself)[:, :, None]  # [B, N, 1, n, n]
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.out(mixed.transpose(2, 3).reshape(lines.shape))  # type: ignore[no-any-return]

    def projected(self, lines: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Q, K and V of lines [B, N, n, C]: [B, N, H, n, D] each."""
        shape = (*lines.shape[:3], self.heads, lines.shape[3] // self.heads)
        return tuple(part.view(shape).transpose(2, 3) for part in self.project(self.norm(lines)).chunk(3, dim=-1))


class AxialLayer(nn.Module):
    """Rows, then columns, then each cell by itself."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.rows, self.columns = Along(channels, heads), Along(channels, heads)
        self.inner = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, cells: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        """Takes and gives cells [B, N, N, C]; `here` as above."""
        cells = cells + self.rows(cells, here)
        cells = cells + self.columns(cells.transpose(1, 2), here.transpose(1, 2)).transpose(1, 2)
        return cells + self.inner(cells)  # type: ignore[no-any-return]


class Axial(nn.Module):
    """Layers over cells that know where they are."""

    def __init__(self, side: int, channels: int, heads: int, layers: int, spread: float) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(side, side, channels) * spread)
        self.layers = nn.ModuleList(AxialLayer(channels, heads) for _ in range(layers))
        for weight in self.layers.parameters():
            # The weights of norms as well, around one: no two norms are to be alike.
            nn.init.normal_(weight, mean=float(weight.dim() == 1), std=spread)

    def forward(self, cells: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        """Takes and gives cells [B, N, N, C]; bool [B, N, N] says which count."""
        cells = cells + self.place
        for layer in self.layers:
            cells = layer(cells, here)
        return cells
