"""Context parallelism: which tokens a rank holds, and how it sees the keys and values of the others.

The sequence is cut into 2·cp chunks; rank i holds chunks i and 2·cp-1-i, so that causal attention costs
every rank the same. Keys and values are all-gathered and put back into the sequence's order before
attention; their gradients are reduce-scattered. Source: "Scaling Llama 3 Training" (ISCA'25), the section
on context parallelism.
"""

from typing import Any

import torch

from reftrain.parallel.autograd import call
from reftrain.rank.comm import Axis


def chunk_positions(length: int, size: int, index: int) -> torch.Tensor:
    """Positions in the whole sequence of the tokens that rank `index` of `size` holds, (length/size,)."""
    if size == 1:
        return torch.arange(length)
    chunks = torch.arange(length).chunk(2 * size)
    return torch.cat([chunks[index], chunks[2 * size - 1 - index]])


def in_sequence_order(stacked: torch.Tensor) -> torch.Tensor:
    """Put gathered pieces in the sequence's order: (cp, …, S/cp, D) becomes (…, S, D)."""
    size = stacked.shape[0]
    heads, tails = stacked.chunk(2, dim=-2)
    return torch.cat([*heads.unbind(0), *reversed(tails.unbind(0))], dim=-2) if size > 1 else stacked[0]


def in_rank_order(whole: torch.Tensor, size: int) -> torch.Tensor:
    """Inverse of `in_sequence_order`: (…, S, D) becomes (cp, …, S/cp, D)."""
    chunks = whole.chunk(2 * size, dim=-2)
    return torch.stack([torch.cat([chunks[i], chunks[2 * size - 1 - i]], dim=-2) for i in range(size)])


class _GatherKeysValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keys: torch.Tensor, values: torch.Tensor, axis: Axis, label: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.axis, ctx.label = axis, label
        whole = in_sequence_order(axis.all_gather(torch.stack([keys, values]), f"{label}.kv"))
        return whole[0], whole[1]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        pieces = in_rank_order(torch.stack([grads[0], grads[1]]), ctx.axis.size)
        own = ctx.axis.reduce_scatter(pieces, f"{ctx.label}.kv.grad")
        return own[0], own[1], None, None


def gather_keys_values(
    keys: torch.Tensor, values: torch.Tensor, axis: Axis, label: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """All-gather (B, H, S/cp, D) keys and values to (B, H, S, D) in the sequence's order."""
    if axis.size == 1:
        return keys, values
    whole_keys, whole_values = call(_GatherKeysValues, keys, values, axis, label)
    return whole_keys, whole_values
