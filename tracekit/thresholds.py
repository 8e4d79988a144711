"""Every threshold of tracekit, named and with its reason; each section belongs to the room it names.

This file stands below everything that reads it. A comparison elsewhere uses a name from here, never a bare number.
"""

from typing import Final

# --- files, dumps, ingest: bounds on input that nobody vouches for ---

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

MAX_PARTS: Final = 4
"""Parts a coalesced call is expected to have when the rows of the last calls are cut out; more shorten the tail."""

MAX_PARTS_SHOWN: Final = 8
"""Parts of a coalesced call whose sizes stand in its signature."""

MAX_GROUPS: Final = 4096
"""Groups read of one dump: a rank of a 5D mesh is in a few dozen."""

MAX_RANK: Final = 1 << 24
"""Ranks are below this: a thousand times the largest jobs known."""

MAX_INTEGER: Final = 1 << 62
"""Sequence numbers and times are below this, so that differences of two fit into int64."""

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

MAX_MEMBERS_TEXT: Final = 1 << 20
"""Characters by which a list of members that is no text is looked up: 131 072 ranks of seven digits and a comma."""

MAX_FRAMES: Final = 64
"""Frames of a stack that are kept."""

MAX_SHAPES: Final = 64
"""Tensors of one call whose elements are counted."""

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

TIMES_AGREE_SHARE: Final = 0.05
TIMES_AGREE_NS: Final = 10_000
"""Share of the duration, and time beside it, by which discovered times may differ from the measured one."""

TIMED_SHARE: Final = 0.9
"""Share of calls whose discovered times must be there, or agree, before all calls are placed by them."""

SAME_POLL_NS: Final = 1_000_000
"""Calls discovered within a millisecond of each other were discovered in one poll of the watchdog."""

# --- tables: what counts as waiting, as one step, as one message ---

# --- slowrank: who is named ---

# --- hang: who is named ---

MAX_WITNESSES: Final = 64
"""Ranks or replicas asked about an order or a version: all of them run one program, so more tell nothing new."""

MIN_WITNESSES: Final = 2
"""Peers that must show the usual order before a rank is named for another: one may be the odd one itself."""

PATTERN_CALLS: Final = 12
"""Calls compared to find a place in a repeating pattern: a layer makes about ten on one group."""

STALE_DUMPS_SHARE: Final = 0.25
"""Share of dumps older than their peers' beyond which they are those of a live job, written one after another."""

STRAGGLER_CALLS: Final = 8
"""Timed collectives below which coming last says nothing of a rank."""

STRAGGLER_SHARE: Final = 0.5
"""Share of all waiting in its calls that a straggler must cause itself: with less, others are late as often."""

STRAGGLER_CHANCE: Final = 1e-3
"""Probability, over all ranks together, with which chance (1/size a call) may make a rank last as often as it was."""

NAMED_A_SIDE: Final = 4
"""Ranks named of each side of a mismatch in doubt; the group tells the rest."""

NAMED_IN_SENTENCE: Final = 8
"""Culprits of a kind named in the verdict's sentence; the list below it names all."""

NAMED_IN_DOUBT: Final = 16
"""Ranks named of those that may explain a standstill; more are no lead."""

# --- report: how much is shown ---

CULPRITS_SHOWN: Final = 16
REJECTED_SHOWN: Final = 5
"""Culprits and rejected files of a hang listed without --verbose: a screen holds them beside the stacks."""

FRAMES_SHOWN: Final = 12
"""Innermost frames of a stack: these lead from the collective to the training step."""

RANK_RUNS_SHOWN: Final = 24
"""Runs of consecutive ranks shown of a list: two lines of text."""

SHAPES_SHOWN: Final = 4
"""Shapes shown of a call's inputs: an all-to-all may have one a member."""
