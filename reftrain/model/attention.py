"""The seam to the attention kernels: SDPA with a mask tensor, flash without a mask, or Flex with block masks.

`math` is SDPA by plain matrix products instead of a fused kernel; `documents` computes document by document.

All take (B, H, Sq, D) queries and (B, Hkv, Sk, D) keys and values in the sequence's order, with
grouped-query heads.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from reftrain.model.batch import LocalBatch
from reftrain.model.document_attention import attend_documents

_FLEX_LEAST_WIDTH = 16  # torch's Flex kernels refuse narrower heads


def choose_kernel(wanted: str, device: torch.device, *, document_mask: bool, cp: int, head_dim: int) -> str:
    """Kernel for `numerics.attention`: auto takes the fastest that device, mask and head width allow."""
    if wanted != "auto":
        return wanted
    if not document_mask and cp == 1:
        return "flash"
    return "flex" if device.type == "cuda" and head_dim >= _FLEX_LEAST_WIDTH else "sdpa"


def attend(
    kernel: str, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: LocalBatch
) -> torch.Tensor:
    """Attention output (B, H, Sq, D)."""
    if kernel == "flex":
        out: torch.Tensor = _flex()(queries, keys, values, block_mask=batch.blocks, enable_gqa=True)
        return out
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:  # the CPU kernel knows no grouped heads, and its fallback is slow
        keys, values = (t.repeat_interleave(groups, dim=1) for t in (keys, values))
    if kernel == "documents":
        return attend_documents(queries, keys, values, batch.blocks)
    if kernel == "math":
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=batch.allowed)
    if kernel == "flash":
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=batch.allowed)


def attend_images(
    kernel: str, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Attention (B, H, Sq, D) of the text to all tokens of its sequence's image."""
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = (t.repeat_interleave(groups, dim=1) for t in (keys, values))
    with sdpa_kernel(SDPBackend.MATH) if kernel == "math" else nullcontext():
        return F.scaled_dot_product_attention(queries, keys, values)


_compiled: dict[str, Callable[..., Any]] = {}


def _flex() -> Callable[..., Any]:
    """Flex attention, compiled once a process."""
    if "flex" not in _compiled:
        from torch.nn.attention.flex_attention import flex_attention

        _compiled["flex"] = torch.compile(flex_attention)
    return _compiled["flex"]


def ring_mask(batch: LocalBatch) -> torch.Tensor:
    """Mask by source rank that a ring needs."""
    if batch.allowed is None:
        raise AssertionError("a ring's micro-batches are cut with masks")
    return batch.allowed


def recomputed(function: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """Run without keeping inner activations; backward runs `function` again.

    The second run goes to the end, so that segments and collectives begun in it also end in it.
    """
    out: torch.Tensor = checkpoint(
        function, *arguments, use_reentrant=False, preserve_rng_state=False, early_stop=False
    )
    return out
