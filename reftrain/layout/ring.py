"""The order in which Gloo sums: a ring over W chunks of the buffer, rounded to the format at every hop.

Chunk c is summed x[c-1] + x[c-2] + … + x[c+1] + x[c] (indices modulo W). The chunks' bounds follow from the
buffer's bytes; they are recorded with every reduction in the order plan, and derived here for the declared one.
"""

from collections.abc import Callable, Sequence

import torch

SEGMENT_BYTES = 1 << 20

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def chunk_bounds(elements: int, element_size: int, ranks: int) -> list[tuple[int, int]]:
    """First and end element of each rank's chunk of a buffer."""
    size = elements * element_size
    segments = max(-(-size // SEGMENT_BYTES), 2 * ranks)
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
    """Sum equally shaped tensors, one a rank in the group's order, as the ring does; a new contiguous tensor."""
    ranks = len(parts)
    flat = [part.reshape(-1) for part in parts]
    if ranks == 1:
        return flat[0].clone().view(parts[0].shape)
    out = torch.empty_like(flat[0], memory_format=torch.contiguous_format)
    for chunk, (first, end) in enumerate(
        bounds or chunk_bounds(flat[0].numel(), flat[0].element_size(), ranks)
    ):
        if first == end:
            continue
        total = flat[chunk - 1][first:end]
        for hop in range(2, ranks + 1):
            total = combine(total, flat[(chunk - hop) % ranks][first:end])
        out[first:end] = total
    return out.view(parts[0].shape)
