"""Thresholds of reading: bounds of untrusted input, each with its reason."""

from typing import Final

MAX_RANKS: Final = 1 << 18
"""Largest world size believed; the largest known jobs have 10^5 ranks."""

MOST_STEPS: Final = 10**9
"""Steps of a run: thirty years of one a second."""

MAX_ORDINAL: Final = 1 << 40
"""Steps, micro-batches and rows of a rank are counted below this: keys that add or hash them stay within 64 bits."""

MAX_EXTENT: Final = 1 << 48
"""Elements of a tensor, a buffer or a dimension: 10^5 times the largest parameter known."""

MAX_DIMENSIONS: Final = 16
"""Most dimensions of a tensor; training uses at most 6."""

MAX_JSON_BYTES: Final = 64 << 20
"""Largest stamp or manifest read; real ones have kilobytes."""

MAX_PAIR_BYTES: Final = 4 << 10
"""Largest note beside repeated runs that is read; real ones have two ids and two policies."""

MAX_PLAN_BYTES: Final = 256 << 20
"""Largest order plan or shadow sums read; a plan of 1 000 ranks has megabytes."""

READER_BYTES: Final = 16 << 30
"""Address space that a process may take to read one file of a run: Arrow reserves far more than it uses."""

READER_SECONDS: Final = 3600.0
"""Time for one file of a run. The largest take seconds; only a reader that loops needs an hour."""

MAX_HEADER_BYTES: Final = 256 << 20
"""Largest safetensors header read; 10^6 tensors need 100 MiB."""

MAX_CELLS: Final = 1 << 22
"""Most cells of the grid on which boxes are laid to see whether they cover a tensor; real shardings need hundreds."""

MAX_REPLAYER_LINE: Final = 2000
"""Characters kept of a line that the replayer prints."""

REPLAYER_LINES: Final = 20
"""Lines kept of the replayer's output; the last one is the reason of a failure."""

MAX_LAYER_DIGITS: Final = 9
"""Most digits of a layer's number; longer numbers in names are hashes or dates."""

MAX_SQUARE: Final = 1e100
"""Sum of squares of a buffer: 2⁴⁸ elements of FP32's largest, 3.4·10³⁸, give 3·10⁹¹; what overflowed is infinite."""
