"""Ring attention: keys and values travel round the context axis; each rank attends to the block it holds.

Each block gives an output and the logarithm of its sum of exponentials (LSE); two such results merge by
their LSEs. In backward the blocks travel again, and their gradients with them, home to the rank that owns
them. Between two exchanges lies one segment of computation. The chunks are those of `parallel.context`.
Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers".
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from reftrain.parallel.autograd import call
from reftrain.rank.comm import Axis
from reftrain.rank.events import Phase, Segment
from reftrain.rank.hooks import HookList


@dataclass(frozen=True)
class BlockSegments:
    """Announces the computation on each block: `by_source` holds the segment of each context rank's keys."""

    hooks: HookList
    by_source: Sequence[Segment]

    def block(self, source: int, phase: Phase) -> AbstractContextManager[None]:
        """Scope of the computation on the keys of context rank `source`."""
        return self.hooks.segment(replace(self.by_source[source], phase=phase))


def block_scores(queries: torch.Tensor, keys: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Scaled scores (B, Hkv, G, Sq, Sk), minus infinity where `allowed` (B, 1, 1, Sq, Sk) is false."""
    scale: float = queries.shape[-1] ** -0.5
    scores = torch.einsum("bhgqd,bhkd->bhgqk", queries, keys) * scale
    return scores.masked_fill(~allowed, -torch.inf)


def by_groups(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Split heads into key/value heads and their queries: (B, Hkv·G, S, D) becomes (B, Hkv, G, S, D)."""
    return x.reshape(x.shape[0], -1, groups, *x.shape[2:])


def block_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to one block: output (B, Hkv, G, Sq, D) and LSE (B, Hkv, G, Sq, 1).

    A query that may attend to nothing in the block gets output 0 and LSE minus infinity.
    """
    scores = block_scores(queries, keys, allowed)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0))
    return torch.einsum("bhgqk,bhkd->bhgqd", weights, values), lse


def merge(
    out: torch.Tensor, lse: torch.Tensor, block_out: torch.Tensor, block_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to the union of two sets of keys from the attention to each."""
    total = torch.logaddexp(lse, block_lse)
    safe = total.masked_fill(total == -torch.inf, 0.0)
    return out * torch.exp(lse - safe) + block_out * torch.exp(block_lse - safe), total


def _rotate(axis: Axis, block: torch.Tensor, label: str) -> torch.Tensor:
    """Pass the block on to the next rank and return the previous rank's."""
    received = torch.empty_like(block)
    axis.exchange(block, (axis.index + 1) % axis.size, received, (axis.index - 1) % axis.size, label)
    return received


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        allowed: torch.Tensor,
        axis: Axis,
        label: str,
        segments: BlockSegments,
    ) -> torch.Tensor:
        wide = torch.promote_types(queries.dtype, torch.float32)
        groups = queries.shape[1] // keys.shape[1]
        q = by_groups(queries.to(wide), groups)
        block = torch.stack([keys, values])
        out, lse = torch.zeros_like(q), q.new_full((*q.shape[:-1], 1), -torch.inf)
        for turn in range(axis.size):
            source = (axis.index - turn) % axis.size
            with segments.block(source, "forward"):
                part = block.to(wide)
                out, lse = merge(out, lse, *block_attention(q, part[0], part[1], allowed[source]))
            if turn + 1 < axis.size:
                block = _rotate(axis, block, f"{label}.kv")
        ctx.save_for_backward(queries, keys, values, allowed, out, lse)
        ctx.axis, ctx.label, ctx.segments = axis, label, segments
        return out.flatten(1, 2).to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, keys, values, allowed, out, lse = ctx.saved_tensors
        axis: Axis = ctx.axis
        wide = out.dtype
        groups = queries.shape[1] // keys.shape[1]
        q = by_groups(queries.to(wide), groups)
        grad_out = by_groups(grads[0].to(wide), groups)
        delta = (grad_out * out).sum(dim=-1, keepdim=True)
        grad_q = torch.zeros_like(q)
        block = torch.stack([keys, values])
        grad_block = torch.zeros_like(block, dtype=wide)
        for turn in range(axis.size):
            source = (axis.index - turn) % axis.size
            with ctx.segments.block(source, "backward"):
                part = block.to(wide)
                weights = torch.exp(block_scores(q, part[0], allowed[source]) - lse)
                grad_weights = torch.einsum("bhgqd,bhkd->bhgqk", grad_out, part[1])
                grad_scores = weights * (grad_weights - delta) * q.shape[-1] ** -0.5
                grad_q += torch.einsum("bhgqk,bhkd->bhgqd", grad_scores, part[0])
                grad_block[0] += torch.einsum("bhgqk,bhgqd->bhkd", grad_scores, q)
                grad_block[1] += torch.einsum("bhgqk,bhgqd->bhkd", weights, grad_out)
            if turn + 1 < axis.size:
                block = _rotate(axis, block, f"{ctx.label}.kv")
            grad_block = _rotate(axis, grad_block, f"{ctx.label}.kv.grad")
        grad_kv = grad_block.to(keys.dtype)
        return grad_q.flatten(1, 2).to(queries.dtype), grad_kv[0], grad_kv[1], None, None, None, None


def ring_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    allowed: torch.Tensor,
    axis: Axis,
    label: str,
    segments: BlockSegments,
) -> torch.Tensor:
    """Attend with this rank's queries (B, H, S/cp, D) to the keys and values of all ranks.

    `allowed` is (cp, B, 1, 1, S/cp, S/cp): for each source rank, which of its keys a query may see. Every
    query must see at least one key (its own).
    """
    out: torch.Tensor = call(_RingAttention, queries, keys, values, allowed, axis, label, segments)
    return out
