"""Bounds on dumps of the flight recorder, and on their times."""

from typing import Final

MAX_DUMP_BYTES: Final = 1 << 28
"""Largest dump read: 256 MiB. 2 000 entries with stacks are about 2 MB, 20 000 about 20 MB."""

WORKER_BYTES: Final = 3 << 29
"""Address space that a decoding worker may take beyond what it starts with: 1.5 GiB, six times the largest dump."""

WORKER_SECONDS: Final = 60.0
"""Time for one dump. One of 20 000 entries takes about a second."""

FILES_A_CHUNK: Final = 16
"""Dumps handed to a worker at once: enough to hide the wait for the parent, few enough to share the last ones out."""

TAIL_CALLS: Final = 48
"""Finished calls kept per group: enough for a pattern to repeat (a layer makes about ten on the TP group)."""

MAX_OPEN_CALLS: Final = 1024
"""Calls kept per group from the first unfinished one on: a host runs ahead of its device by what its queue holds."""

MAX_OPEN_MESSAGES: Final = 128
"""Outstanding sends and receives kept per rank: a pipeline stage has a few per micro-batch."""

MOVED_LATELY_NS: Final = 1_000_000_000
"""Time since the last issued or retired call within which a job counts as moving: 1 s, ten polls of the watchdog."""

ABORT_SHARE: Final = 0.5
"""Share of its time-out after which a call that ends and is not retired may be aborted: ranks issue it apart."""

USUAL_TIMEOUT_MS: Final = 600_000
"""Time-out of a call if its dump does not hold it: torch's for NCCL."""

MAX_PARTS: Final = 4
"""Parts a coalesced call is expected to have when the rows of the last calls are cut out; more shorten the tail."""

MAX_PARTS_SHOWN: Final = 8
"""Parts of a coalesced call with sizes in its signature."""

MAX_GROUPS: Final = 4096
"""Groups read of one dump: a rank of a 5D mesh is in a few dozen."""

MAX_RANK: Final = 1 << 18
"""Ranks are below this, as those of traces are (`MAX_RANKS`): twice the largest jobs known."""

MAX_INTEGER: Final = 1 << 62
"""Sequence numbers and times are below this, so that differences of two fit into int64."""

MAX_LEAP: Final = 1 << 12
"""Numbers by which calls of a group may be further apart than the ring shows: calls between were left out as done."""

MAX_SEQ: Final = 1 << 40
"""Sequence numbers of timed calls are below this, so that they can share an int64 with a kind."""

MAX_NUMBER: Final = 1e15
"""Durations are below this: larger ones are no measurement."""

MAX_DIGITS: Final = 20
"""Digits of an integer written as text: 2**62 has 19."""

MAX_STATUS_DIGITS: Final = 10
"""Digits of a group's number in `pg_status`: groups are counted from 0."""

MAX_VERSION: Final = 16
MAX_BACKEND_NAME: Final = 16
MAX_GROUP_NAME: Final = 200
MAX_HOST_NAME: Final = 200
MAX_OP_NAME: Final = 80
MAX_MESSAGE_NAME: Final = 80
MAX_SIZES_TEXT: Final = 400
MAX_DTYPES_TEXT: Final = 200
MAX_DTYPE: Final = 40
MAX_FILE_NAME: Final = 300
MAX_FUNCTION_NAME: Final = 200
MAX_LINE_NUMBER: Final = 12
"""Characters kept of a text in a dump: what NCCL and PyTorch write is shorter, a crafted text may be of any length."""

MAX_FRAMES: Final = 64
"""Frames of a stack that are kept."""

MAX_SHAPES: Final = 64
"""Tensors of one call to count elements of."""

MAX_DIMENSIONS: Final = 64
"""Dimensions of a tensor: PyTorch allows as many."""

MAX_JSON_DEPTH: Final = 64
"""Nesting of cut JSON that is followed: a dump nests five deep."""

MAX_SIGNATURES: Final = 100_000
"""Signatures that a worker keeps before it forgets them all: a job has some hundreds."""

RECENT_SIGNATURES: Final = 4
"""Signatures of an operation compared before one is looked up: layers alternate between few sizes."""

LONGEST_CALL_MS: Final = 86_400_000.0
"""Longest call that is believed: a day."""

MOMENTS_APART_NS: Final = 60 * 1_000_000_000
"""Between the last calls of ranks that did not stop together, ns: clocks of one job's hosts differ by far less, and a
rank with idle peers issues no more calls within seconds."""

OLD_DUMPS_SHARE: Final = 0.25
"""Share of dumps that may be old ones of ranks that died: as many as the analysis takes for old (STALE_DUMPS_SHARE)."""

TIMES_AGREE_SHARE: Final = 0.05
TIMES_AGREE_NS: Final = 10_000
"""Share of the duration, and time beside it, by which discovered times may differ from the measured one."""

TIMED_SHARE: Final = 0.9
"""Share of calls with discovered times that must exist, or agree, before all calls are placed by them."""

SAME_POLL_NS: Final = 1_000_000
"""Calls discovered within a millisecond of each other were discovered in one poll of the watchdog."""
