"""Attention on bounded tensors, with every rounding that one of its kernels or a formula written out may make.

Fused kernels keep logits in FP32. Others scale the queries in their own format, and round logits, probabilities and the
gradients of both to it.
"""

import math
from typing import Any

import torch
from torch.nn import functional

from numerics.local.bounds.bounded import FUNCTIONS, Bounded


class _Weighted(torch.autograd.Function):
    """Softmax of logits times values; back as flash kernels do, with the product of output and its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the weighted values, in their format."""
        ctx.weights = logits.softmax(-1)
        ctx.value = value
        out: torch.Tensor = ctx.weights.to(value.dtype) @ value
        ctx.out = out
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the gradients of logits and values."""
        wide = ctx.weights.dtype
        narrow = ctx.weights.to(grad.dtype)
        of_weights = (grad @ ctx.value.transpose(-2, -1)).to(wide)
        inner = (of_weights * ctx.weights).sum(-1, keepdim=True)
        fused = (grad.to(wide) * ctx.out.to(wide)).sum(-1, keepdim=True)
        if isinstance(inner, Bounded) and isinstance(fused, Bounded):
            inner = Bounded(inner.value, inner.error + fused.error, wide)
        of_logits = (ctx.weights * (of_weights - inner)).to(grad.dtype).to(wide)
        return of_logits, narrow.transpose(-2, -1) @ grad


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return `scaled_dot_product_attention` of bounded tensors, (..., queries, width of values).

    With dropout nothing is bounded: the drawn numbers are unknown.
    """
    dtype = query.dtype
    wide = torch.float32 if torch.finfo(dtype).bits < torch.finfo(torch.float32).bits else dtype
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = (query * factor @ key.transpose(-2, -1)).to(wide)
    if is_causal:
        kept = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~kept, -math.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        logits = logits.masked_fill(~attn_mask, -math.inf) if masked else logits + attn_mask
    out: torch.Tensor = _Weighted.apply(logits, value)  # type: ignore[no-untyped-call] # torch's `apply` is untyped
    if dropout_p and isinstance(out, Bounded):
        out.error = torch.full_like(out.error, math.inf)
    return out


FUNCTIONS[functional.scaled_dot_product_attention] = attention
