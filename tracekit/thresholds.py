"""Every threshold of tracekit, named and with its reason; each section belongs to the room it names.

This file stands below everything that reads it. A comparison elsewhere uses a name from here, never a bare number.
"""

from typing import Final

# --- files, dumps, ingest: bounds on input that nobody vouches for ---

READ: Final = 1 << 18
"""Compressed bytes read at a time."""
SIP: Final = 1 << 12
"""Compressed bytes handed to gunzip at a time: the most that an error in them can cost."""
BLOCK: Final = 1 << 22
"""Most bytes of a decompressed block: large enough that per-block costs vanish, small enough to stay in cache."""
MAX_WINDOW: Final = 1 << 27
"""Window of zstd, bytes: `zstd --long` uses this much by default; more is an attack on memory."""
HEAD: Final = 16
"""Bytes that must have been read before the kind of a file is told; the longest magic number is shorter."""

MANIFEST_HEAD: Final = 200
"""Characters of a file `manifest.json` in which a run names its schema: it is the first field."""

MAX_TABLE_BYTES: Final = 1 << 31
"""Bytes of an operation table, 2 GiB: with one row per operation such tables stay far below."""
MAX_PLACES: Final = 1 << 20
"""Data-parallel size or stages of an operation table; a greater number is a fault of the file."""
MAX_SECONDS: Final = 1e9
"""Start or duration in an operation table, s (32 years): as nanoseconds they stay far within 64 bits."""
MAX_ORDINAL: Final = 1 << 20
"""Operations of one type in a step of one rank; `seq_id` beyond this does not count them."""
STEP_GAP_NS: Final = 1_000_000
"""Time between steps of an operation table that are laid one after another, ns."""
FILES_NAMED: Final = 3
"""Files that a message names before it says how many more there are."""
LOOKED_INTO: Final = 64
"""Files set aside by name whose first bytes are looked at, in case the folder holds dumps only."""
INT32_END: Final = 1 << 31
"""Ranks, group sizes and devices are stored as 32-bit integers; a value that does not fit is dropped and counted."""
MAX_RANKS: Final = 1 << 20
"""Ranks of a job, and members of a process group; more is a fault of the file."""
MAX_COUNT: Final = 1 << 62
"""Sequence numbers, element counts, streams and ids: a sum or a product by 2 of any two stays within 64 bits."""
MAX_MARKED_STEPS: Final = 100_000
"""Steps of one file that are remembered to tell recordings apart; a profiler records some tens."""
MAX_STEP: Final = 1 << 30
"""Number of a training step: keys that hold a step beside an ordinal stay within 64 bits."""
MAX_TIME_NS: Final = 1 << 62
"""Start or base time, ns: below this the sum of a start, a base time and a duration stays within 64 bits."""
LONGEST_NS: Final = 24 * 3600 * 1_000_000_000
"""Duration of an event, ns: none of a training step lasts a day; recorders that wrap around write more."""
MAX_OVERLAP_NS: Final = 1_000
"""Overlap of two kernels on one stream that is not counted, ns: the resolution of older traces."""
MAX_OVERLAP: Final = 0.1
"""Overlap of two recordings of a rank, of the shorter one: its device events may start after the next one's first."""
HOPELESS: Final = 100_000
"""Elements of an event array that are no events, before the first that is one, after which reading stops."""
MAX_HEADER: Final = 1 << 25
"""Bytes before the event array, and behind it, 32 MiB: the groups of 100 000 ranks need a third of that."""
KEPT_START: Final = 1 << 20
"""Bytes kept of a file without an event array, to tell its kind."""
KEY_ROOM: Final = 64
"""Bytes that hold a separator or a colon, the blanks around it and the first key behind it."""
WINDOW: Final = 1 << 22
"""Bytes of events handed to pyarrow at a time."""
SMALL: Final = 1 << 12
"""Bytes of events below which it costs less to read event by event than to narrow the fault down."""
MAX_BURST: Final = 1 << 12
"""Events read one by one before pyarrow is tried again."""
TEXT: Final = 1 << 16
"""Bytes decoded at a time when events are read one by one."""
NEAR_END: Final = 12
"""Characters before a text's end within which a JSON fault may come from that end: a pair of escapes is as long."""
MAX_EVENT: Final = 1 << 25
"""Bytes of one event, 32 MiB; a longer one is skipped and counted."""
MAX_SEPARATORS: Final = 4
"""Ways of separating events that are learned from one file; real files have one or two."""
MAX_JSON_DIGITS: Final = 400
"""Digits of a number: enough for any double, few enough to stay cheap."""
MAX_WHOLE_EXPONENT: Final = 30
"""Power of ten from which a decimal exceeds 64 bits in any case, and is not rounded first."""
MAX_TIME_EXPONENT: Final = 20
"""Power of ten beyond which microseconds exceed 64 bits of nanoseconds in any case."""
MIN_TIME_EXPONENT: Final = -30
"""Power of ten below which microseconds are 0 ns in any case."""
RUN_ROWS: Final = 1 << 19
"""Events sorted at a time: about 100 MB."""
CHUNK_ROWS: Final = 1 << 15
"""Events of a spilled run in memory at a time."""
GROUP_ROWS: Final = 1 << 18
"""Rows of a Parquet row group."""
LEAST_CALLS: Final = 8
"""Calls of a step of timed dumps, and of the window that all ranks' rings hold; fewer compare nothing."""
LEAST_STEPS: Final = 3
"""Steps that marks or a period must tell before they are believed."""
MAX_RARE_CALLS: Final = 64
"""Calls of the rarest kind that one period may hold."""
PERIODS_ALIKE: Final = 0.9
"""Share of calls that must repeat after a period; evaluation and logging add some calls of their own."""
MAX_BATCH_MEMBERS: Final = 256
"""Messages that one batched kernel may carry: a stage exchanges a few with each neighbour; more are not read."""
MAX_NESTED_RECORDS: Final = 8
"""Records before a launch that are tried for the one around it: calls nest two or three deep."""
MAX_TWINS: Final = 64
"""Process groups of the same members that are told apart; their sequence numbers are interleaved by this."""
BEYOND_ALL_CALLS: Final = 1 << 62
"""A sequence number beyond that of every call."""
MAX_RUN_MANIFEST: Final = 1 << 26
"""Bytes of a `run.json` that is read, 64 MiB: the hosts of a hundred thousand ranks need a few."""

# --- mesh: what an axis without a description is called ---

MANY_CALLS: Final = 24
"""Collectives of a group from which it may be tensor or context parallel: those communicate in every layer."""
MOSTLY_EXPOSED: Final = 0.6
"""Share of collectives that compute waits for, above which an axis is inside the layers: data parallelism overlaps."""
ALTERNATING: Final = 0.93
"""Share of collectives that differ in kind from the one before, above which gathers and scatters take turns (tp)."""

MAX_DUMP_BYTES: Final = 1 << 28
"""Largest dump read: 256 MiB. 2 000 entries with stacks are about 2 MB, 20 000 about 20 MB."""

WORKER_BYTES: Final = 3 << 29
"""Address space that a decoding worker may take beyond what it starts with: 1.5 GiB, six times the largest dump."""

WORKER_SECONDS: Final = 60.0
"""Time for one dump. One of 20 000 entries takes about a second."""

READER_BYTES: Final = 16 << 30
"""Address space that a reading process may take beyond what it starts with: Arrow reserves far more than it uses."""

READER_SECONDS: Final = 6 * 3600.0
"""Time for one trace. The largest take minutes; only a reader that loops needs hours."""

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

ENDS_LEAST: Final = 4
"""Common collectives of two ranks from which their ends can miss a line: three nearly always fit one."""
ENDS_MISFIT: Final = 0.15
"""Median miss of a common line, of the median time between ends. Ranks of one job: 0.002 on GPUs, up to 0.12 on Gloo.

Ranks of two jobs that have the same layout: 0.2 to 3, because the differences of their steps add up.
"""
ENDS_TAIL: Final = 2.0
"""The same miss, of the time that the member which came last takes: members leave within the operation's own time."""
ENDS_SHIFTS: Final = 16
"""Operations by which two windows may be numbered differently before their ends are called another recording's."""
ENDS_MATCHED: Final = 300
"""Ends of a rank that are compared with all of another rank: enough to count by, few enough to square."""
ENDS_WIDTH_NS: Final = 20_000
"""Difference of two common ends on a device, ns: the tail of a transfer, and the drift of clocks within a window."""
ENDS_TOGETHER: Final = 0.5
"""Share of ends that meet under one difference of clocks from which two ranks ran together; by chance a tenth does."""
ENDS_DRIFT: Final = 0.01
"""Drift between two clocks that no host has: crystals differ by 1e-4 at the most."""
CLOCK_FIT_FROM: Final = 12
"""Common collectives of two ranks from which a drift is fitted; from fewer, noise would pass for drift."""

CLOCK_FIT_POINTS: Final = 240
"""Common collectives that a drift is fitted to: Theil and Sen's line compares all pairs of them."""

QUICKER_LINKS_PERCENTILE: Final = 25
"""Round trips up to this percentile bound what two clocks leave open: a slow link lengthens its own pairs' only."""

RESUME_SLACK_NS: Final = 50_000
"""Compute that begins this long before a wait ends resumed after it, on a CPU trace: both times are the host's."""

RESUME_SLACK_SHARE: Final = 0.02
"""The same as a share of the wait, also on a CPU trace only."""

DEVICE_ROUNDING_NS: Final = 2_000
"""The same on a GPU trace: a device orders its kernels exactly, and older traces round both times to microseconds."""

ENOUGH_STEPS: Final = 3
"""Steps that an analysis wants before it stops accepting steps that some ranks lack: a median needs three."""

NEARLY_ALL_RANKS: Final = 0.8
"""Share of ranks that must have a step whole, where too few steps are whole on all ranks."""

MOST_RANKS: Final = 0.5
"""The same where that leaves too few steps as well: with fewer ranks a median of peers means nothing."""

WHOLE_STEP_SHARE: Final = 0.5
"""A step with fewer operations than this share of the rank's median step was cut, even if all members agree."""

ALIGN_LEAST_OVERLAP: Final = 0.5
"""Ragged recordings are aligned with at least this share of the shorter one inside the longer one."""

RESULT_COPY_SHARE: Final = 0.05
"""An operator within this share of a communication span, at its end, belongs to it: Gloo copies its result there."""

EAGER_SPREAD: Final = 3.0
"""Sends whose 90th percentile stays below this many medians hardly vary: nothing held them up."""

EAGER_SHARE: Final = 0.5
"""Sends that wait for their receiver vary as receives do; eager ones stay below this share of the receives'."""

LONG_TAIL_PERCENTILE: Final = 90
"""Percentile that stands for the longest sends and receives; the last tenth may be accidents."""

LONG_SEND: Final = 5.0
"""A send of more than this many times the median was held up."""

HELD_RECEIVE_SHARE: Final = 0.5
"""A send was held by a late receive if the receive was posted in the last half of the send."""

HELD_END_SHARE: Final = 0.25
"""And if both end together, within this share of the send's duration."""

HELD_MAJORITY: Final = 0.5
"""Share of the long sends that must have been held by their receive before sends are taken to wait."""

HELD_LEAST: Final = 2
"""And at least this many of them: one pair may be an accident."""

PROVEN_EAGER_SHARE: Final = 0.05
"""Share of the sends that must end before their receive was posted, where none stands alone in its kernel."""

ALWAYS_BUFFERED_BYTES: Final = 1 << 14
"""Bytes of a message that NCCL buffers in any case: 16 KiB for each channel, of which there is at least one."""

NEVER_BUFFERED_BYTES: Final = 1 << 27
"""Bytes of a message that NCCL never buffers: 4 MiB for each channel over NVLink, of which there are at most 32."""

BUFFERED_RECEIVE: Final = 3
"""A receive below this many times the quickest one only copied a message that had arrived before."""

COMMON_END_NS: Final = 30_000
"""Both kernels of a message end within this time of each other, beside what the clocks leave open: across nodes the
last bytes and the flag behind them take some ten microseconds."""

CLOCK_DOUBTS: Final = 3.0
"""Median differences of common ends that two clocks may be apart; beyond them few ends of collectives lie."""

CANDIDATE_ENDS: Final = 2
"""Kernels before and behind an end that are tried as its partner: a stage has two neighbours."""

COMMON_ENDS_LEAST: Final = 4
"""Messages that must end together before two lanes are taken to carry the same ones: fewer happen by chance."""

COMMON_ENDS_SHARE: Final = 0.85
"""Share of a lane's messages that must be explained: the rest may be cut, or was called late by a disturbed clock."""

BY_CHANCE: Final = 0.3
"""Share of kernels that may end together by chance; with more, agreement proves nothing."""

TWINS_SHARE: Final = 0.5
"""Share of kernels that begin and end together on two ranks from which the two do the same and send each other none."""

AXIS_RIVAL: Final = 0.6
"""An axis is the pipeline if no other axis explains more than this share of the messages that it does."""

LANE_MAJORITY: Final = 0.65
"""Share of a lane's messages that one other lane must explain for it to be the peer: with two peers each has half."""

LANE_ENDS_SHARE: Final = 0.05
"""Share of the messages of two lanes that must end together where sends go to buffers: receives that waited. A stage
that is slower than the one before it waits for the first micro-batch of a step only."""

LANE_RIVAL: Final = 0.6
"""A lane is given to another only if its second-best partner explains less than this share of what the best does."""

MAX_LANES: Final = 16
"""Lanes of a rank that are tried against those of another: a stage has a few streams for messages."""

MAX_CLOCK_RATE: Final = 3e-4
"""Rate by which two clocks may drift apart: crystals are within 100 parts in a million, and temperature adds some."""

CLOCK_CANDIDATES: Final = 8
"""Differences of two clocks that are followed through all steps: micro-batches repeat, so some nearly fit."""

CLOCK_RIVAL: Final = 0.8
"""Two clocks are compared only if the second-best difference explains less than this share of the best one's ends."""

MAX_KERNELS_COMPARED: Final = 128
"""Kernels of a step whose ends are compared all with all to find the difference of two clocks."""

MAX_MESSAGES_ALIGNED: Final = 1024
"""Messages of a step whose sizes are compared all with all on one channel; a stage sends some tens."""

TIE_NS: Final = 1_000_000
"""Of two ways to join messages by size, ends that differ by this much more count half as much."""

# --- slowrank: who is named ---

MIN_LOST_SHARE: Final = 0.02
"""Below 2 % of the step nobody is named (contract): diurnal clock variation alone moves steps by 1–2 %."""

LEAST_MATCHED: Final = 0.1
"""Matched share of the exposed communication below which nobody is called healthy: hardly any wait was seen."""

CANDIDATE_SHARE: Final = 0.5 * MIN_LOST_SHARE
"""Excess of own time, as a share of the step, from which a rank is suspected: two of them may cost 2 % together."""

Z_LIMIT: Final = 4.5
"""Standard errors a rank's excess must clear: one false alarm in about 300 000 normal trials, so that a thousand
ranks still give less than one in a hundred; the noise is heavier-tailed than normal, hence no smaller."""

ONE_STEP_P: Final = 0.05
"""With a single step a rank is named if coming last so often has at most this probability (all ranks tested)."""

LEAST_CHANCE: Final = 1e-300
"""Smallest probability that is turned into standard errors: below it the normal quantile is infinite."""

NOISE_FLOOR: Final = 5e-4
"""Share of the step below which own times are never trusted to differ (timestamps, launch jitter)."""

SUSPECT_SHARE: Final = 0.2
"""A further suspect must cost at least this share of the worst one's loss."""

STEP_SHARE: Final = 0.3
"""A step counts as slow on a suspect when its excess exceeds this share of its worst step's."""

MOST_CONFIDENCE: Final = 0.999
"""Confidence is never reported above this: the noise need not be normal that far out."""

MOST_GAIN: Final = 0.99
"""A cure is never reported to save more than this share of the step: the rest must stay positive."""

RECURRING_SHARE: Final = 0.25
"""Share of its mean that an excess keeps without its longest step if it recurs: one that strikes twice keeps half."""

OTHER_STEPS: Final = 3
"""Steps in which a rank must be as quick as its peers before one long step counts as an accident for sure."""

OTHER_STEPS_OF_FIRST: Final = 2
"""The same where the long step is the first one captured: there a profiler starts."""

STAGE_TELLING_PEERS: Final = 3
"""Ranks a stage from which they tell a long stage from a slow rank: of fewer, all may be slow, or one short of work."""

STAGE_MIN_PEERS: Final = 2
"""Pipeline stages that are compared with each other: at least this many."""

STEP_PARTS: Final = 8
"""Parts of a step in which peers are compared where work moves between ranks within the step."""

NO_WORK_NS: Final = 1000.0
"""Own time within which nothing was done: clocks of traces tick in microseconds."""

ANSWER_NS: Final = 50_000
"""An operation posted within this time after another one ended may have waited for it."""

QUEUED_NS: Final = 20_000
"""An operation that starts within this time of the end of the one before it on its stream stood in the queue."""

UNEVEN_RATIO: Final = 1.4
"""Overdispersion of the work between ranks (variance of blocks over the sum of their parts' variances, 1 where
delays are independent from kernel to kernel) from which work is unevenly dealt rather than noisy."""

UNEVEN_BLOCKS: Final = 8
"""Blocks a step whose variance is compared with that of their operations."""

DATA_VARIATION: Final = 0.03
"""Least coefficient of variation of attention time between peers that makes an imbalance follow the data."""

ATTENTION_NAMED: Final = 0.02
"""Attention below this share of the other compute is taken for a trace that does not name its attention kernels."""

ATTENTION_VARIATION: Final = 2.0
"""Attention must vary this many times as much as the other compute: a slow device slows both alike."""

LEVELLING_GAIN: Final = 2.0
"""Levelling all ranks must save this many times as much as curing the suspects for the data to be the cause."""

RANKS_SAMPLED: Final = 16
"""Ranks whose events are read to see whether an imbalance follows the data; reading all would take minutes."""

PEERS_SAMPLED: Final = 6
"""Peers whose events are read to explain a suspect: a median needs few."""

LINK_RATIO: Final = 1.25
"""A link is slow when its transfers take this much longer than those of its peers for the same message."""

LINK_RATIO_OF_TWO: Final = 1.6
"""The same where there is one peer only, whose own spread is unknown."""

LINK_REPEATS: Final = 3
"""Steps from which messages are compared with those at the same place of other steps: a median needs three."""

LINK_NOISE_SHARE: Final = 0.02
"""Transfers are never trusted to differ by less than this share of the peers' transfer."""

CLOCK_DOUBT: Final = 2.0
"""A message's transfer must exceed its peers' by this many times the doubt about the clocks of its two ranks."""

MAJORITY: Final = 0.5
"""A cause must explain at least half of the excess own time."""

PAUSES_A_STEP: Final = 8
"""More long gaps than this in a step are no pauses but a slow host, which delays every launch a little."""

KERNELS_SHOWN: Final = 0.1
"""A kind of kernel is shown as evidence where it makes up more than this share of the excess."""

ATTENTION_ALONE: Final = 0.7
"""Share of the excess that attention must explain before a suspect is excused by the documents it was dealt."""

PRODUCTS_STEADY: Final = 0.2
"""And the relative excess of matrix products must be below this share of attention's: a slow device slows both."""

ROLE_SHARE: Final = 0.1
"""Share of the step up to which host work of all ranks with tensor index 0 is the job's design, not a fault."""

ROLE_EQUALITY: Final = 0.5
"""The least of their excesses must reach this share of the largest: one of them may be slow besides."""

ROLE_RANKS: Final = 2
"""Ranks of that role a pipeline stage, at least: a single one shows no pattern."""

DUMP_LITTLE: Final = 0.5
"""In dumps a rank that others wait for waits less than this share of what its peers wait."""

DUMP_DOUBT: Final = 2.0 * MIN_LOST_SHARE
"""In dumps an excess from this share of the step is no proof of health even if it is not significant."""

RANKS_LISTED: Final = 6
"""Ranks or steps that a reason lists; the rest are counted."""

MEMBERS_LISTED: Final = 8
"""Members of a process group that an error lists."""

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

ROWS_SHOWN: Final = 8
"""Suspects and rejected files that the text lists without --verbose: they fit a screen."""

NUMBER_RUNS_SHOWN: Final = 12
"""Runs of step or rank numbers that one line of text lists."""

COVERAGE_WHOLE: Final = 0.995
"""Share of exposed communication time from which all of it counts as matched: less than a percent moves no verdict."""

TIGHT_INTERVAL: Final = 0.1
"""Share by which the ends of a price may differ before the text shows both."""

WORST_WORKERS: Final = 0.03
"""Share of the workers that M_W of the OSDI'25 paper cures: its authors take the worst 3 %, at least one (Eq. 5)."""

# --- tables: groups told by streams and common ends ---

LEAST_ENDS: Final = 4
"""Ends of a stream that are compared at the least: two numbers go into the clock's offset and drift."""
ENDS_COMPARED: Final = 128
"""Ends of a stream that are compared at the most, spread over the recording: more make nothing clearer."""
APART_QUANTILE: Final = 0.75
"""Share of common ends that must agree: in a union of two groups half of the pairs with its first rank are false."""
TAIL_NS: Final = 5_000.0
"""Members of a collective leave within the tail of its transfer, ns: a few microseconds."""
TOGETHER: Final = 2.5
"""Ends that agree as well as the best within this factor agree: the tail's own spread is no larger."""
CLEARLY_APART: Final = 4.0
"""Ends that differ by this factor more than those of members are ends of different groups."""
LEAST_TAIL_NS: Final = 1_000.0
"""Ends that agree better than this are taken to differ by so much, ns: older traces have whole microseconds."""
PROVING_LEAD: Final = 3.0
"""A rank that came last by this factor more than ends differ shows who waited for it."""
MOST_CLUSTERED: Final = 1024
"""Ranks of a class that are compared each with each where no mesh is given: the work is quadratic."""

# --- tables: steps told by operations that repeat ---

WHOLE_REPEATS: Final = 2
"""Repetitions that make a pattern, of most of a recording: the end of a step breaks the pattern of its layers."""
RAGGED_RIMS: Final = (0.0, 0.05, 0.1, 0.2)
"""Shares of a recording that are left off its end in turn: the last kernels of other streams may be cut off there."""
REPEATING_SHARE: Final = 0.6
"""Share of a rank's operations that must repeat: the first step of a program often runs something more."""
