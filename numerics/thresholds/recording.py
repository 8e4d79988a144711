"""Thresholds of recording, each with its reason."""

from typing import Final

ROWS_PER_GROUP: Final = 16384
"""Rows held in memory before they are written: about 10 MiB."""

KEY_CACHE_BYTES: Final = 256 << 20
"""Memory for keys of boxes: a run of preset small needs this much every step, and would make them anew with less."""

MIX_CHUNK: Final = 1 << 15
"""Elements mixed at a time on a CPU: their 256 KiB stay in its cache, and are memory that malloc has at hand."""

PASS_CHUNK: Final = 1 << 18
"""Elements fingerprinted at a time on a CPU: with keys and float64 copy 640 KiB, which its second cache holds while all
sums are taken; a tensor larger than the caches would be read from memory for each of them."""

SCRATCH_ELEMENTS: Final = 1 << 23
"""Elements up to which a thread keeps the memory (64 MiB) of a tensor's float64 copy for the next."""

HASH_CHUNK: Final = 1 << 18
"""Elements hashed at a time, so that the 64-bit copies stay in the cache."""

LOW_BITS_SAMPLE: Final = 1024
"""Elements looked at first when a tensor is tested for bfloat16 numbers; nearly always enough to say no."""
