"""Every threshold and bound of reftrain, named and with its reason; each section belongs to the rooms it names.

This file stands below everything that reads it. A comparison elsewhere uses a name from here, never a bare number.
"""

from typing import Final

# --- config, rank, execute, train, record, replay, faults: bounds of a run ---

LARGEST_CONFIG_FILE: Final = 1 << 20
"""Bytes of a configuration file: one that sets every field has less than 8 KB."""

LARGEST_TEXT_FILE: Final = 1 << 30
"""Bytes of a text file to train on: it is held in memory on every rank, eight bytes per token."""

LEAST_VOCABULARY: Final = 16
"""Tokens of a synthetic vocabulary: eos, padding and enough words for steps of 1 to 7 to teach something."""

LARGEST_MANIFEST: Final = 16 << 20
"""Bytes of a run.json to replay: one of 16 384 ranks has less than 1 MB."""

WAIT_S: Final = 600.0
"""Seconds that a collective may wait for its members: torch's own default is 600 or 1800, by backend."""

WAIT_IN_HANG_S: Final = 25.0
"""The same where a hang is planted: long enough for a loaded machine to reach it, short enough to wait for."""

DEATH_GRACE_S: Final = 1.0
"""Seconds after a first death in which the rank that caused it shows, where several die of it."""

END_S: Final = 3.0
"""Seconds for ranks to end when asked to, before they are killed."""

GONE_S: Final = 60.0
"""Seconds for killed ranks to be gone: none refuses, but a busy machine takes its time."""

WATCH_S: Final = 0.02
"""Seconds between two looks at the ranks: unseen beside the half second that a rank takes to start."""

LARGEST_REPORT: Final = 1 << 16
"""Bytes of a rank's report to its parent: what a pipe holds, so that writing it never blocks."""

FIRST_SLURM_PORT: Final = 20_000
"""First port where the ranks of a Slurm job meet: above well-known ports, below Linux's ephemeral ones (32 768)."""

SLURM_PORTS: Final = 10_000
"""Ports from there on; the job's number chooses one, so that two jobs on a host rarely meet."""

FLIGHT_ENTRIES: Final = 2000
"""Calls in a flight recorder: torch's own default."""

HANG_SHARE: Final = 0.6
"""Share of its timeout after which a pending call is taken for a hang, and the dump is kept as it is."""

FREE_GROUP_NUMBER: Final = 1000
"""First number given to process groups without a collective: beyond those that torch has counted."""

ALLOCATOR_ENTRIES: Final = 200_000
"""Allocations kept in a memory snapshot: some steps of a small model, in a file of tens of megabytes."""

GLOO_SEGMENT_BYTES: Final = 1 << 20
"""Bytes of the largest segment of Gloo's ring (gloo/allreduce.h, `kMaxSegmentSize` default of 1 MiB)."""

GLOO_SEGMENTS_PER_RANK: Final = 2
"""Segments of Gloo's ring for each rank at least: one travels while another is summed (gloo/allreduce.cc)."""

FOREVER_S: Final = 1 << 24
"""Seconds that a planted hang sleeps: half a year, and a whole number that C's `sleep` takes."""

EXTRA_WORK_SIDE: Final = 512
"""Side of the square factor in the extra work of a slow rank: rows by it take a whole tile of any BLAS."""

EXTRA_WORK_ROWS: Final = 8192
"""Rows of one product of extra work at most: 16 MB, a few milliseconds on a core."""

EXTRA_WORK_MEMORY: Final = 0.2
"""Weight of the newest product in the estimated time of a row: five products smooth a busy machine's noise."""
