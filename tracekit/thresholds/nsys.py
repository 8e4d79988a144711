"""Bounds on databases that nsys exported, and what NVTX ranges must show before they count as steps."""

from typing import Final

MAX_ROWS: Final = 400_000_000
"""Rows read of one table: the largest reports known have ten million; this many are an hour of reading."""

MAX_CELL: Final = 1 << 22
"""Bytes of one value: the environment of a process, the largest value that is read, has some 20 KB."""

MAX_TABLES: Final = 2000
"""Tables looked at: nsys creates some hundred, most of them lists of names."""

LEAST_SECONDS: Final = 120.0
"""Seconds that reading a small database may take: one of 10 MB takes less than one."""

BYTES_PER_SECOND: Final = 1_000_000
"""Bytes that are read a second at the least: a twentieth of what a busy machine does."""

TICK: Final = 100_000
"""Instructions of SQLite's machine between two looks at the clock: some milliseconds."""

CHUNK: Final = 50_000
"""Rows in memory at a time: some 20 MB of Python objects."""

MAX_NAMES: Final = 500_000
"""Names kept of a database before they are looked up again: torch's operator ranges have millions, each used once."""

MAX_RANGES: Final = 2_000_000
"""NVTX ranges of one process that are kept to look for steps, 100 MB; more than that are no steps."""

MAX_CALLS: Final = 2_000_000
"""NCCL calls kept of one process, 400 MB: a thousand steps of a large pipeline."""

MAX_FIELDS: Final = 64
"""Fields of a payload schema: NCCL's have seven at most."""

LEAST_MARKS: Final = 2
"""Ranges of one name that may be steps: a single one shows no step that compares with another."""

MARKED_SHARE: Final = 0.8
"""Share of the time from its first begin to its last end that a range without a number must cover to be the step:
forward passes, backward passes and updates, which repeat as often, cover less each."""

NAME_LENGTH: Final = 1000
"""Characters kept of a name: C++ kernels have some hundred."""
