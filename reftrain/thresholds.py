"""Every threshold and bound of reftrain, named and with its reason; each section belongs to the rooms it names.

This file imports nothing of its readers. A comparison elsewhere uses a name from here, never a bare number.
"""

from typing import Final

# --- config, rank, execute, train, record, replay, faults: bounds of a run ---

LARGEST_CONFIG_FILE: Final = 1 << 20
"""Bytes of a configuration file: one that sets every field has less than 8 KB."""

LARGEST_NUMBER: Final = 1e12
"""Number of a configuration or machine: a thousand times any rate that is written in its unit."""

MOST_STEPS: Final = 10**9
"""Steps of a run: thirty years of one a second."""

MOST_TRACED: Final = 10_000
"""Steps that `--trace` names: a trace of so many fills disks, and a range is written out."""

MOST_THREADS: Final = 4096
"""Threads of a rank, or processes that read or write: more than any machine has cores."""

MOST_DEVICES: Final = 1 << 20
"""Devices of a job, and ranks of an axis: ten times the largest jobs known."""

LARGEST_COST: Final = 10**9
"""Time of an action in `--cost`, in any unit: costs are compared with one another."""

MOST_TOKENS: Final = 1 << 40
"""Tokens of a step, and of a sequence: ten thousand times the largest batches known."""

LARGEST_FAULT: Final = 1e9
"""Factor, or milliseconds, of a planted fault: eleven days of a pause, a rank slower than any job would wait for."""

LARGEST_INTEGER: Final = 1 << 62
"""Whole number of a configuration: sizes and seeds stay within 64 bits."""

MOST_LAYERS: Final = 10_000
"""Layers of a model: eighty times those of the 405b model, and each is written out."""

MOST_EXPERTS: Final = 4096
"""Experts of a layer: sixteen times those of the widest published models."""

WIDEST: Final = 1 << 24
"""Width, heads and vocabulary of a model, tokens of a sequence, sequences of a batch: far beyond any known job."""

MOST_FORKED: Final = 1024
"""Ranks that one machine forks: each is a process that has torch, and no machine has the memory of so many."""

LARGEST_TEXT_FILE: Final = 1 << 30
"""Bytes of a text file to train on: it is held in memory on every rank, eight bytes per token."""

MOST_DOCUMENTS: Final = 1 << 31
"""Documents of a tokenised data set: their lengths and order are held in memory on every rank, 24 bytes each."""

GROUPS_HELD: Final = 4
"""Row groups of a Parquet file held at once: a sequence of documents in order needs one or two."""

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

STACKS_APART_S: Final = 1.0
"""Seconds between the two stacks of a hung rank: one that runs has moved by then."""

COUNTERS_S: Final = 2.0
"""Seconds between two readings of a machine's counters: short beside a step that hangs, long beside reading them."""

FREE_GROUP_NUMBER: Final = 1000
"""First number given to process groups without a collective: beyond the numbers that torch has used."""

ALLOCATOR_ENTRIES: Final = 200_000
"""Allocations kept in a memory snapshot: some steps of a small model, in a file of tens of megabytes."""

GLOO_SEGMENT_BYTES: Final = 1 << 20
"""Bytes of the largest segment of Gloo's ring (gloo/allreduce.h, `kMaxSegmentSize` default of 1 MiB)."""

GLOO_SEGMENTS_PER_RANK: Final = 2
"""Segments of Gloo's ring for each rank at least: one travels while another is summed (gloo/allreduce.cc)."""

FOREVER_S: Final = 1 << 24
"""Seconds that a planted hang sleeps: half a year, and a whole number that C's `sleep` takes."""

MORE_THAN_ANY_MEMORY: Final = 1 << 50
"""Bytes that a planted allocation asks for: 1 PiB, more than the address space of a process."""

EXTRA_WORK_SIDE: Final = 512
"""Side of the square factor in the extra work of a slow rank: rows by it take a whole tile of any BLAS."""

EXTRA_WORK_ROWS: Final = 8192
"""Rows of one product of extra work at most: 16 MB, a few milliseconds on a core."""

EXTRA_WORK_MEMORY: Final = 0.2
"""Weight of the newest product in the estimated time of a row: five products smooth a busy machine's noise."""

# --- schedule: tables that anybody may hand in ---

MOST_ACTIONS: Final = 600_000
"""Computations of the largest table that is built, 2·p·v·m: those of p 16, v 8, m 2343, checked and timed in 25 s."""

MOST_TABLE_BYTES: Final = 64_000_000
"""Bytes, or characters, of the largest table that is read: the text of the largest table that is built is shorter."""

MOST_TABLE_RANKS: Final = 16_384
"""Pipeline ranks of a table from a file: beyond every cluster, and one line each."""

LONGEST_COST: Final = 40
"""Characters of a number in `--cost`: an exact fraction of more digits would make every time as long."""

MOST_DRAWN_ACTIONS: Final = 60_000
"""Actions of a time line as SVG: more of them are too narrow to be distinguished."""

MOST_BANDS: Final = 6
"""Bands into which a time line on the terminal is folded; a longer one is drawn with one character a column."""

# --- cost, plan: what counts as slower, and how far the search looks ---

LARGEST_HARDWARE_FILE: Final = 1 << 20
"""Bytes of a hardware file: the known ones have less than 4 KB."""

SMALLEST_CONSTANT: Final = 1e-12
"""Rate, size or share of a machine: far below any machine's, and a quotient of two sizes is still a number."""

CALIBRATION_TIMEOUT_S: Final = 120.0
"""Seconds until processes that measure links are given up, and their own limit for a call."""

CARRIED_OVERLAP: Final = 1.0
"""Share of a transfer's time by which computation beside it is delayed: all, where processors carry the transfers."""

BOUND_SLACK: Final = 0.98
"""Share of a closed form that is a safe lower bound: it takes the virtual stages of a rank as equal, and those of
the embedding and the head are not."""

TIE: Final = 0.10
"""Relative difference of projected times that is a tie: the error the projection is held to on published runs."""

HORIZON: Final = 0.12
"""Meshes with a lower bound further than this above the fastest are not projected: more than a tie away."""

FULL_ROUNDS: Final = 4.0
"""Rounds of micro-batches that fill a one-way pipeline: warm-up takes two, and gathers at the step's begin more."""

SAME_GROWTH: Final = 1e-9
"""Relative difference of what rounds add that counts as none: the rounding of sums of thousands of actions."""

MOST_IN_FLIGHT: Final = 1024
"""Micro-batches times virtual stages of an all-forward-all-backward candidate: a table with more has never fitted."""

LARGE_BUBBLE: Final = 0.25
"""Filling and draining of a pipeline over its computing time from which a batch is called small: twice the 12 % that
Llama 3 accepted at m = p."""

SHOWN_MESHES: Final = 12
"""Choices in the text of a plan; the JSON holds all."""

LABELLED_MESHES: Final = 6
"""Points of a plan's picture that carry a label: more would cover one another."""

# --- simulate: how large a job may be, and how much of it is shown ---

MOST_SIMULATED_RANKS: Final = 16_384
"""Ranks of the largest simulated job, the one of Llama 3 405B."""

MOST_LAYER_RUNS: Final = 250_000
"""Layers times micro-batches times steps, forward and backward, that are simulated: about a minute."""

MOST_TIMES: Final = 600_000_000
"""Operations times ranks times steps that are simulated at most: about 14 GB of times."""

LARGEST_HOURS: Final = 1e5
"""Hours of a simulated job's life: eleven years, well within the times that a trace can hold."""

LARGEST_JITTER: Final = 10.0
"""Scale of random deviations: ten times a healthy cluster's already hides every planted fault."""

LAUNCH_QUEUE: Final = 1024
"""Kernels that the host may have launched ahead on a stream: then a launch blocks (CUDA's queue of a channel)."""

CALL_LAUNCHES: Final = 2.5
"""Host time of a collective call in kernel launches: torch's own work around it."""

NS: Final = 1e9
"""Nanoseconds of a second: simulated times are in nanoseconds, costs in seconds."""

LAUNCH_LATENCY_NS: Final = 4_000.0
"""Time from a launch to the start of the kernel on an idle stream."""

PREFETCHED_BATCH_NS: Final = 2e6
"""Time to take a prefetched batch of a healthy loader from its queue and copy it to the device."""

DETAILED_WORLD: Final = 64
"""Ranks up to which traces hold every kernel by default: larger jobs write gigabytes."""

SHOWN_STAGES: Final = 16
"""Pipeline ranks with a row in the text of a simulation; the JSON holds all."""

MOST_STAGES: Final = 64
"""Stages of a recipe: the published ones have fewer than ten."""

SERVER_PACE: Final = 0.5
"""A worker sets the pace of a parameter server's job if it waits for less than this share of any other's wait."""
SERVER_WAIT: Final = 0.1
"""Share of the job that all other workers must wait before one is said to set the pace: below it is chance."""

GOODPUT_INTERVALS: Final = 33
"""Intervals between checkpoints that `goodput` tries: neighbours differ by a sixth, and the optimum is flat."""
GOODPUT_SPREAD: Final = 12.0
"""The tried intervals reach this factor below and above Daly's: a slow write moves the best one, never so far."""
MOST_INTERRUPTIONS: Final = 200_000
"""Interruptions of all simulated jobs together: more take minutes and give no other figure."""
