"""The order in which Gloo sums: a ring over W chunks of the buffer, rounded to the format at every hop.

Chunk c is summed x[c-1] + x[c-2] + … + x[c+1] + x[c] (indices modulo W). The chunks' bounds follow from the buffer's
bytes (gloo/allreduce.cc); the declared plan has them from here, the recorded one from `reftrain.record.ring_bounds`.
"""

from collections.abc import Callable, Sequence

import torch

from numerics.local.bounds.bounded import Bounded, sum_in_any_order
from reftrain.thresholds import GLOO_SEGMENT_BYTES, GLOO_SEGMENTS_PER_RANK

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def chunk_bounds(elements: int, element_size: int, ranks: int) -> list[tuple[int, int]]:
    """Return first and end element of every rank's chunk of a buffer of `elements` of `element_size` bytes."""
    size = elements * element_size
    segments = max(-(-size // GLOO_SEGMENT_BYTES), GLOO_SEGMENTS_PER_RANK * ranks)
    segments = -(-segments // ranks) * ranks
    segment = -(-size // segments)
    segment = -(-segment // element_size) * element_size
    width = segments // ranks * segment // element_size
    return [(min(c * width, elements), min((c + 1) * width, elements)) for c in range(ranks)]


def ring_sum(
    parts: Sequence[torch.Tensor],
    bounds: Sequence[tuple[int, int]] | None = None,
    combine: Combine = torch.add,
) -> torch.Tensor:
    """Return the ring's sum of equally shaped tensors, one per rank of the group in order; new and contiguous."""
    ranks = len(parts)
    flat = [part.reshape(-1) for part in parts]
    if ranks == 1:
        return flat[0].clone().view(parts[0].shape)
    if combine is torch.add and any(isinstance(part, Bounded) for part in parts):
        return sum_in_any_order(parts)
    out = []
    for chunk, (first, end) in enumerate(
        bounds or chunk_bounds(flat[0].numel(), flat[0].element_size(), ranks)
    ):
        total = flat[chunk - 1][first:end]
        for hop in range(2, ranks + 1):
            total = combine(total, flat[(chunk - hop) % ranks][first:end])
        out.append(total)
    return torch.cat(out).view(parts[0].shape)
