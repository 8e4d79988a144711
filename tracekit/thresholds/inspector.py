"""Bounds on records of NCCL's Inspector, and what they must show before a rank is compared."""

from typing import Final

MAX_RECORDS: Final = 20_000_000
"""Calls read of one job: a thousand ranks with 20 000 calls each, in some GB of memory."""

LONGEST_RECORD: Final = 1 << 20
"""Bytes of one record: a verbose one of 64 channels has some 20 KB."""

LONGEST_US: Final = 24 * 3600 * 1_000_000
"""Microseconds of one call: a day, after which no job waits."""

MAX_TIME_US: Final = 1 << 52
"""Microseconds since 1970 of a record: in nanoseconds this fits an int64."""

MAX_BYTES: Final = 1 << 50
"""Bytes of one call: a thousand times any buffer."""

MOST_RANKS: Final = 1 << 17
"""Members of a communicator: eight times the largest job."""

NAME_LENGTH: Final = 200
"""Characters kept of a name in a record."""

MOST_LACKING: Final = 0.1
"""Share of calls that some members recorded and others not, beyond which records are refused: a rank that is late in a
call which is left out makes others wait where nothing shows it."""
