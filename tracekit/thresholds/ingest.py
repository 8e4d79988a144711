"""Bounds on untrusted files and folders, and the sizes in which they are read."""

from typing import Final

READ: Final = 1 << 18
"""Compressed bytes read at a time."""

WRITTEN: Final = 1 << 18
"""Bytes of a table written at a time: its columns of a small file are some hundred bytes each."""

SIP: Final = 1 << 12
"""Compressed bytes handed to gunzip at a time: the most that an error in them can cost."""

BLOCK: Final = 1 << 22
"""Most bytes of a decompressed block: large enough that per-block costs vanish, small enough to stay in cache."""

MAX_WINDOW: Final = 1 << 27
"""Window of zstd, bytes: `zstd --long` uses this much by default; more is an attack on memory."""

MOST_EXPANSION: Final = 200
"""Decompressed bytes of a compressed one: traces have 9 to 35 by gzip and zstd; gzip reaches 1032, zstd 10 000."""

LEAST_EXPANDED: Final = 1 << 26
"""Decompressed bytes, 64 MiB, from which a ratio is judged: fewer do no harm, however they were compressed."""

LARGEST_EXPANDED: Final = 1 << 36
"""Decompressed bytes of a file, 64 GiB: hundreds of times the largest traces, and a quarter of an hour to read."""

SPILLED_PER_JSON: Final = 0.35
"""Temporary bytes of sorted runs for a byte of JSON while a file is read: an event is 170 of 400 bytes or more."""

STORED_PER_JSON: Final = 0.02
"""Temporary bytes of the event table for a byte of JSON that was read."""

HEAD: Final = 16
"""Bytes that must have been read before the kind of a file is known; the longest magic number is shorter."""

MANIFEST_HEAD: Final = 200
"""Characters of a file `manifest.json` in which a run names its schema: it is the first field."""

MAX_TABLE_BYTES: Final = 1 << 31
"""Bytes of an operation table, 2 GiB: with one row per operation such tables stay far below."""

MAX_PLACES: Final = 1 << 20
"""Data-parallel size or stages of an operation table; a greater number is a fault of the file."""

MAX_SPREAD: Final = 4096
"""Places along an axis for each that an operation table records: some tables record few of a job's ranks."""

MAX_SECONDS: Final = 4e9
"""Start in an operation table, s (since 1970 until 2096): its nanoseconds stay within 64 bits beside a duration."""

MAX_APART_SECONDS: Final = 3.2e7
"""Time between a start of an operation table and the median one, s (a year): no job and no clock is further off."""

MAX_ORDINAL: Final = 1 << 20
"""Operations of one type in a step of one rank; `seq_id` beyond this does not count them."""

USUAL_SECONDS: Final = 100.0
"""Median duration of an operation, s, from which a table does not count in seconds: none of them lasts as long."""

STEP_GAP_NS: Final = 1_000
"""Time between steps of an operation table that are laid one after another, ns: it keeps them apart, no more."""

CLOCK_GAIN: Final = 0.5
"""Share of differing ends that may be left for clocks of an operation table to be set: no clock explains what stays."""

FILES_NAMED: Final = 3
"""Files that a message names before it says how many more there are."""

LOOKED_INTO: Final = 64
"""Files set aside by name to read the first bytes of, in case the folder holds only dumps; events at a time."""

INT32_END: Final = 1 << 31
"""Ranks, group sizes and devices are stored as 32-bit integers; a value that does not fit is dropped and counted."""

MAX_DEVICE_NAME: Final = 128
"""Characters of a device's name that are kept; CUDA gives up to 256, names in use have 40."""

MAX_RANKS: Final = 1 << 18
"""Ranks of a job, and members of a process group: twice those of the largest known job; more is a fault of the file."""

MOST_JOBS: Final = 4096
"""Number of a job among those of one input; more are not numbered by any answer."""

MOST_PROCESSES: Final = 4096
"""Processes that read files at once: more than any machine has processors."""

MAX_COUNT: Final = 1 << 62
"""Sequence numbers, element counts, streams and ids: a sum or a product by 2 of any two stays within 64 bits."""

MAX_MARKED_STEPS: Final = 100_000
"""Steps of one file that are remembered to separate recordings; a profiler records some tens."""

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
"""Elements of an event array that are no events, before the first event, after which reading stops."""

MAX_HEADER: Final = 1 << 25
"""Bytes before the event array, and behind it, 32 MiB: the groups of 100 000 ranks need a third of that."""

KEPT_START: Final = 1 << 20
"""Bytes kept of a file without an event array, to find its kind."""

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
"""Steps that marks or a period must show before they are believed."""

MAX_RARE_CALLS: Final = 64
"""Calls of the rarest kind that one period may hold."""

PERIODS_ALIKE: Final = 0.9
"""Share of calls that must repeat after a period; evaluation and logging add some calls of their own."""

MAX_TWINS: Final = 64
"""Process groups of the same members that are separated; their sequence numbers are interleaved by this."""

BEYOND_ALL_CALLS: Final = 1 << 62
"""A sequence number beyond that of every call."""

MAX_RUN_MANIFEST: Final = 1 << 26
"""Bytes of a `run.json` that is read, 64 MiB: the hosts of a hundred thousand ranks need a few."""

CAPTURES_COMPARED: Final = 8
"""Files of one rank that are compared with each other, to separate captures of one job from recordings of several."""

JOBS_SEPARATED: Final = 64
"""Jobs that one input is divided into; more is not a folder of jobs but of damaged files."""

STRAY_SHARE: Final = 0.25
"""Share of the files that may be strays of other jobs; with more, the input is of several jobs."""

LONGEST_PAUSE_NS: Final = 3600 * 1_000_000_000
"""Time between two captures of one job that any number of steps between them may take, ns: a checkpoint, a pause."""

STEPS_PAUSED: Final = 100
"""Times the recorded step that the steps between two captures of one job may take on the average."""

READER_BYTES: Final = 16 << 30
"""Address space that a reading process may take beyond what it starts with: Arrow reserves far more than it uses."""

READER_SECONDS: Final = 6 * 3600.0
"""Time for one trace. The largest take minutes; only a reader that loops needs hours."""

LOOK_SECONDS: Final = 0.1
"""Time between updates of the progress: no eye sees more, and an update costs as many steps as there are files."""

MAX_ARRAYS: Final = 64
"""Arrays within arrays that the compiled scanner passes over; shapes of lists have three, Python bears hundreds."""

MAX_KEYS: Final = 128
"""Keys of one event and its arguments that the compiled scanner separates; recorders write some thirty."""

MAX_CODED_DIGITS: Final = 18
"""Digits of an integer that always fits into 64 bits."""

MAX_MICROS_DIGITS: Final = 16
"""Digits of whole microseconds that are read: as many as the time since 1970 has."""

MAX_MICROS: Final = (1 << 63) // 1000 - 1
"""Whole microseconds with nanoseconds that fit into 64 bits for any fraction."""

MAX_FRACTION: Final = 18
"""Digits of a microsecond behind the point that the general reader rounds in one way only."""

MAX_COMMS_DIGITS: Final = 20
"""Digits of an unsigned 64-bit hash."""

MAX_PEER_DIGITS: Final = 9
"""Digits of a peer's rank: a number in which no group of processes is."""

MAX_PROBES: Final = 256
"""Texts with neighbouring hashes that are compared before a file counts as one made to hash alike."""

POOL_WORDS: Final = 1 << 17
"""Different texts of a column in one batch; a batch with more ends there."""

POOL_TABLE: Final = 1 << 18
"""Places of a pool's hash table: twice its texts, so that few are compared."""

POOL_BYTES: Final = 1 << 24
"""Bytes of the different texts of a column in one batch, 16 MiB; no longer text is read by the compiled scanner."""

KEY_TABLE: Final = 256
"""Places of the hash table of keys: several times the keys, so that one comparison finds most."""

BATCH_ROWS: Final = 1 << 16
"""Events of a batch: enough that Python's work for each costs nothing, few enough that its columns stay in cache."""

KEPT_WORDS: Final = 1 << 13
"""Different texts that are handed over with batch after batch; with more, each batch gets texts of its own."""

WORTH_LOADING: Final = 1 << 22
"""Bytes of JSON, 4 MiB, from which the compiled scanner saves more than the 0.05 s that it takes to load."""

WORTH_COMPILING: Final = 1 << 27
"""Bytes of JSON, 128 MiB, from which compiling, 5 s once a machine, is won back by the second reading."""

WORTH_SCANNING: Final = 1 << 16
"""Bytes of JSON in one file, 64 KiB, from which the compiled scanner's memory is worth setting up."""

LEAST_EVENT: Final = 128
"""Bytes of JSON of an event; a file with shorter ones is read in more batches."""

JSON_PER_GZIP: Final = 10
"""Bytes of JSON in a byte of a compressed trace: 12 to 20 in recorded ones."""

BUILD_SECONDS: Final = 120.0
"""Time for compiling the scanner; it takes 5 s, on a busy machine 20."""

MAX_CODE: Final = 1 << 24
"""Bytes of a file of compiled code that is read, 16 MiB; it has some 30 KB."""

CONNECT_SECONDS: Final = 5.0
"""Time for a cluster to take a connection: a name and three packets, over any distance."""

FILES_A_TASK: Final = 16
"""Files of one task of a cluster: its process starts in a second, which as many small files are worth."""

TASKS_A_CPU: Final = 2
"""Tasks handed to each processor of a cluster: one running, one queued; all results under way must fit in memory."""

LOST_WORKERS: Final = 8
"""Workers that one task may lose before it is given up: nodes that may be taken away go several times an hour."""

WINDOW_GAP_NS: Final = 1_000_000_000
"""Time between windows that are laid one behind the other, ns: longer than any event that begins in the earlier one."""

RANK_FOLDERS: Final = 3
"""Folders around a file to look for a rank in the names of: `rank3/iteration_10/trace.json`, with a host between."""

MAX_FLOPS: Final = 1 << 60
"""FLOPs of one operator, beyond which its recorded shapes are damage: an H100 would need 20 minutes for it."""

MAX_HOSTS_FILE: Final = 1 << 24
"""Bytes of a file of hosts, 16 MiB: a row of 64 for each of `MAX_RANKS`."""

MOST_KEPT_EVENTS: Final = 200_000
"""Events of a run whose columns stay in memory once read: all columns of so many take 40 MB."""
