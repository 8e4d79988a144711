"""Ring attention for all context ranks at once: blocks in the order in which they reach each rank.

Liu et al. 2023: each rank attends to one block of keys after another and merges by the logarithms of the sums
of exponentials; in backward a block's gradient travels with it, gaining each rank's addend on the way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reftrain.replay.virtual_ranks import Ranks, VirtualRanks, joint

Masks = Sequence[Tensor | None]
"""Which keys each rank in lock step may see, by source rank; None only where no ring runs."""


@dataclass
class _Forward:
    """What one rank's forward leaves for its backward, in the wide format, heads by groups."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor
    out: Tensor
    lse: Tensor


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(B, Hkv·G, S, D) to (B, Hkv, G, S, D)."""
    return x.reshape(x.shape[0], -1, groups, *x.shape[2:])


def _scores(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    scale: float = queries.shape[-1] ** -0.5
    products = torch.einsum("bhgqd,bhkd->bhgqk", queries, keys) * scale
    return products.masked_fill(~mask, -torch.inf)


def _block(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Output and LSE of attention to one block; 0 and minus infinity where nothing is visible."""
    scores = _scores(queries, keys, mask)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0))
    return torch.einsum("bhgqk,bhkd->bhgqd", weights, values), lse


def _merged(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.logaddexp(lse, other_lse)
    finite = total.masked_fill(total == -torch.inf, 0.0)
    return out * torch.exp(lse - finite) + other * torch.exp(other_lse - finite), total


def _forward(
    ranks: Sequence[int], place: int, q: Tensor, kv: Sequence[tuple[Tensor, Tensor]], mask: Tensor
) -> _Forward:
    """Forward of the context rank at `place` of its group `ranks`; `kv` are all ranks' keys and values."""
    own = kv[place]
    wide = torch.promote_types(q.dtype, torch.float32)
    grouped = _grouped(q.to(wide), q.shape[1] // own[0].shape[1])
    out, lse = torch.zeros_like(grouped), grouped.new_full((*grouped.shape[:-1], 1), -torch.inf)
    for step in range(len(ranks)):
        source = (place - step) % len(ranks)
        keys, values = (t.to(wide) for t in kv[source])
        out, lse = _merged(out, lse, *_block(grouped, keys, values, mask[source]))
    return _Forward(grouped, own[0], own[1], mask, out, lse)


def _show_turns(virtual_ranks: VirtualRanks, blocks: Ranks, label: str) -> None:
    """Show all turns but the last, after which a block would be home."""
    for turn in range(virtual_ranks.cp - 1):
        _show_turn(virtual_ranks, blocks, turn, label)


def _show_turn(
    virtual_ranks: VirtualRanks, blocks: Ranks, turn: int, label: str, *, grouped: bool = False
) -> None:
    """Show one turn of the ring: blocks by their owner, or group after group if `grouped`."""
    size, groups = virtual_ranks.cp, virtual_ranks.groups("cp")
    sent, received = list(blocks), list(blocks)
    for number, group in enumerate(groups):
        own = blocks[number * size : (number + 1) * size] if grouped else [blocks[r] for r in group]
        for place, r in enumerate(group):
            sent[r], received[r] = own[(place - turn) % size], own[(place - 1 - turn) % size]
    virtual_ranks.observer.exchange("cp", label, groups, sent, received)


def _backward(
    group: Sequence[_Forward], grads: Sequence[Tensor], travelling: list[list[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the queries (grouped) and of keys and values (2, B, Hkv, S, D) of every rank of a group.

    Appends to `travelling`, by turn, what leaves each rank: the block gradients as they are then, by owner.
    """
    size = len(group)
    grad_outs = [_grouped(g.to(f.out.dtype), f.out.shape[2]) for f, g in zip(group, grads, strict=True)]
    deltas = [(g * f.out).sum(dim=-1, keepdim=True) for f, g in zip(group, grad_outs, strict=True)]
    grad_queries = [torch.zeros_like(f.queries) for f in group]
    grad_blocks = [torch.zeros_like(torch.stack([f.keys, f.values]), dtype=f.out.dtype) for f in group]
    for step in range(size):  # the block of rank s is at rank s + step now
        for source in range(size):
            place = (source + step) % size
            f, grad_out = group[place], grad_outs[place]
            keys, values = (t.to(f.out.dtype) for t in (group[source].keys, group[source].values))
            weights = torch.exp(_scores(f.queries, keys, f.mask[source]) - f.lse)
            grad_weights = torch.einsum("bhgqd,bhkd->bhgqk", grad_out, values)
            grad_scores = weights * (grad_weights - deltas[place]) * f.queries.shape[-1] ** -0.5
            grad_queries[place] = grad_queries[place] + torch.einsum("bhgqk,bhkd->bhgqd", grad_scores, keys)
            addends = [
                torch.einsum("bhgqk,bhgqd->bhkd", grad_scores, f.queries),
                torch.einsum("bhgqk,bhgqd->bhkd", weights, grad_out),
            ]
            grad_blocks[source] = grad_blocks[source] + torch.stack(addends)
        travelling[step] += [block.clone() for block in grad_blocks]
    return grad_queries, grad_blocks


def ring_attention(
    virtual_ranks: VirtualRanks, queries: Ranks, keys: Ranks, values: Ranks, masks: Masks, label: str
) -> Ranks:
    """Attend with each rank's (B, H, S/cp, D) queries to the keys and values of all context ranks."""
    count, groups = len(virtual_ranks), virtual_ranks.groups("cp")
    kept: list[_Forward | None] = [None] * count

    def there(tensors: Ranks) -> Ranks:
        q, k, v = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        out = list(q)
        for group in groups:
            kv = [(k[r], v[r]) for r in group]
            for place, r in enumerate(group):
                mask = masks[r]
                assert mask is not None  # noqa: S101 - a ring's shares are cut with masks
                made = _forward(group, place, q[r], kv, mask)
                kept[r] = made
                out[r] = made.out.flatten(1, 2).to(q[r].dtype)
        _show_turns(virtual_ranks, [torch.stack(pair) for pair in zip(k, v, strict=True)], f"{label}.kv")
        return out

    def back(grads: Ranks) -> Ranks:
        out: list[Tensor] = [torch.empty(0)] * (3 * count)
        blocks = [torch.stack([f.keys, f.values]) for f in kept if f is not None]
        _show_turns(virtual_ranks, blocks, f"{label}.kv")
        travelling: list[list[Tensor]] = [[] for _ in range(virtual_ranks.cp)]
        for group in groups:
            forwards = [f for r in group if (f := kept[r]) is not None]
            grad_queries, grad_blocks = _backward(forwards, [grads[r] for r in group], travelling)
            for r, f, grad_q, block in zip(group, forwards, grad_queries, grad_blocks, strict=True):
                both = block.to(f.keys.dtype)
                out[r] = grad_q.flatten(1, 2).to(grads[r].dtype)
                out[count + r], out[2 * count + r] = both[0], both[1]
        for turn, tensors in enumerate(travelling):
            _show_turn(virtual_ranks, tensors, turn, f"{label}.kv.grad", grouped=True)
        return out

    return joint(there, back, [*queries, *keys, *values])
