"""Thresholds of recording, each with its reason."""

from typing import Final

ROWS_PER_GROUP: Final = 16384
"""Rows held in memory before they are written: about 10 MiB."""

SMALL_TENSOR: Final = 1 << 14
"""Elements up to which a tensor is copied and fingerprinted together with others: its calls cost more than a copy."""

SMALL_TOGETHER: Final = 256
"""Small tensors fingerprinted together: copies of at most 32 MiB; more would save little of what a call costs."""

KEY_CACHE_BYTES: Final = 256 << 20
"""Memory for keys of boxes: a run of preset small needs this much every step, and would make them again with less."""

HOST_CHUNK: Final = 1 << 17
"""Elements fingerprinted at a time on a CPU: with keys, mixed bits and float64 copy 1 MiB, which its second cache
nearly holds, and memory that malloc has at hand."""

HASH_CHUNK: Final = 1 << 18
"""Elements fingerprinted at a time on a device, so that the 64-bit copies stay small."""

LOW_BITS_SAMPLE: Final = 1024
"""Elements looked at first when a tensor is tested for bfloat16 numbers; nearly always enough to say no."""

FLAT_ANCHOR: Final = 64
"""Elements that are compared one by one where a flat tensor is looked for among weights: BF16 numbers of a normal
distribution agree in one by chance in about 100, in eight never."""

FLAT_CANDIDATES: Final = 8
"""Places of a flat tensor that are compared whole; as many behind `FLAT_ANCHOR` elements are of values that repeat."""
