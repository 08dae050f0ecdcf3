"""Probe: writes down every attention that a network computes while it is on, and changes none of it.

Works for unmodified networks of Hugging Face and for anybody's own module, without patching either: a torch function mode
sees `scaled_dot_product_attention`, and for attentions written out by hand the softmax, with the product before it (Q and K)
and the one behind it (V and the output). What is fused or compiled into something else is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from oracle.attention import Attention, hidden_below

_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm"})


class Probe(TorchFunctionMode):
    """While entered, appends to `seen` one attention a layer and forward, in the order in which they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Attention] = []
        self._product: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def take(self) -> list[Attention]:
        """What was seen since the last time."""
        seen, self.seen = self.seen, []
        return seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Lets torch compute, and looks at what went in and came out."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func is functional.scaled_dot_product_attention:
            self.seen.append(_fused(result, *args, **kwargs))
        elif name == "softmax" and result.dim() == 4:
            self.seen.append(_by_hand(args[0] if args else kwargs["input"], result, self._product))
            self._product = None
        elif name in _PRODUCTS:
            left, right = _factors(name, args, kwargs)
            if self.seen and _weighs(self.seen[-1], left):
                self.seen[-1] = _with_output(self.seen[-1], right, result)
            else:
                self._product = (left, right, result)
        return result


def _fused(
    output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Attention:
    """A call of scaled_dot_product_attention; the arguments are torch's own."""
    shape = (*query.shape[:-1], key.shape[-2])
    visible, bias = torch.ones(shape, dtype=torch.bool, device=query.device), None
    if is_causal:
        visible = visible.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        visible = visible & (attn_mask > hidden_below(attn_mask.dtype))
        bias = attn_mask.expand(shape).clone()
    chosen = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return Attention(query.clone(), key.clone(), value.clone(), visible, output.clone(), chosen, bias)


def _by_hand(
    logits: torch.Tensor, weights: torch.Tensor, product: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
) -> Attention:
    """A softmax over [B, H, Q, T], with the product that its logits came from, if that is where they came from."""
    batch, heads, queries, cells = logits.shape
    query, key = None, None
    if product is not None and product[2].numel() == logits.numel() and product[2].shape[-2:] == (queries, cells):
        left, right, _ = product
        query = left.reshape(batch, heads, queries, -1).clone()
        key = right.transpose(-2, -1).reshape(batch, heads, cells, -1).clone()
    return Attention(
        query,
        key,
        None,
        logits > hidden_below(logits.dtype),
        None,
        shown_logits=logits.clone(),
        shown_weights=weights.clone(),
    )


def _weighs(attention: Attention, left: torch.Tensor) -> bool:
    """Whether a product is that of this attention's weights and values."""
    weights = attention.shown_weights
    if weights is None or attention.values is not None:
        return False
    return left.numel() == weights.numel() and left.shape[-2:] == weights.shape[-2:]


def _with_output(attention: Attention, right: torch.Tensor, result: torch.Tensor) -> Attention:
    batch, heads, queries, cells = attention.visible.shape
    return Attention(
        attention.queries,
        attention.keys,
        right.reshape(batch, heads, cells, -1).clone(),
        attention.visible,
        result.reshape(batch, heads, queries, -1).clone(),
        shown_logits=attention.shown_logits,
        shown_weights=attention.shown_weights,
    )


def _factors(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The two factors of a product, wherever the call has them."""
    if name == "baddbmm":
        rest = args[1:]
        left = rest[0] if rest else kwargs["batch1"]
        return left, rest[1] if len(rest) > 1 else kwargs["batch2"]
    left = args[0] if args else kwargs["input"]
    return left, args[1] if len(args) > 1 else kwargs.get("mat2", kwargs.get("other"))
