"""Bounds of the chunks in which Gloo's ring sums a buffer, as the recorder notes them with every reduction.

This follows Gloo segment by segment (gloo/allreduce.cc, `ring` and `genericAllreduceFunc`): the buffer is cut into
segments of equal bytes, and every rank owns as many consecutive ones. The replay derives the same bounds in closed
form (`reftrain.replay.ring`), on purpose a second time: comparing the recorded plan with the declared one would
otherwise compare a function with itself.
"""

from reftrain.thresholds import GLOO_SEGMENT_BYTES, GLOO_SEGMENTS_PER_RANK


def ring_bounds(elements: int, element_size: int, ranks: int) -> list[tuple[int, int]]:
    """Return first and end element of every rank's chunk of a buffer of `elements` of `element_size` bytes."""
    total = elements * element_size
    largest = max(1, GLOO_SEGMENT_BYTES // element_size) * element_size
    segments = max((total + largest - 1) // largest, GLOO_SEGMENTS_PER_RANK * ranks)
    while segments % ranks:
        segments += 1
    segment_bytes = (total + segments - 1) // segments
    while segment_bytes % element_size:
        segment_bytes += 1
    bounds, offset = [], 0
    for _ in range(ranks):
        first = offset
        for _ in range(segments // ranks):
            offset += min(segment_bytes, total - offset)
        bounds.append((first // element_size, offset // element_size))
    return bounds
