"""Bounds to recognise a step, an operation, a message and a group in a recording."""

from typing import Final

MAX_BATCH_MEMBERS: Final = 256
"""Messages that one batched kernel may carry: a stage exchanges a few with each neighbour; more are not read."""

LATE_LAUNCH_NS: Final = 10_000_000
"""Longest time by which a launch may appear after its kernel: clocks of host and device differ by less than 10 ms."""

MAX_NESTED_RECORDS: Final = 8
"""Records before a launch that are tried for the one around it: calls nest two or three deep."""

CLOCK_FIT_FROM: Final = 12
"""Common collectives of two ranks from which a drift is fitted; from fewer, noise would pass for drift."""

CLOCK_LINE_FROM: Final = 4
"""`CLOCK_FIT_FROM` if all of them lie on a line: two always do, and three by chance."""

CLOCK_LINE_SHARE: Final = 0.1
"""Largest distance of an end from that line, as a share of the largest distance from a constant."""

CLOCK_FIT_POINTS: Final = 240
"""Common collectives that a drift is fitted to: Theil and Sen's line compares all pairs of them."""

QUICKER_LINKS_PERCENTILE: Final = 25
"""Round trips up to this percentile bound what two clocks leave open: a slow link lengthens its own pairs' only."""

POLLS_THAT_WAIT: Final = 3
"""Queries of an event, without a launch in between, from which a host waits for it."""

MOST_DRIFT: Final = 1e-4
"""Clocks of two hosts gain no more on each other than this, ns per ns: crystals are good to some 50 millionths."""

WAITED_ENDS_LEAST: Final = 3
"""Collectives of two ranks in which one waited for the other, from which these alone give the clocks."""

WAITED_ENDS_SPREADS: Final = 3.0
"""Number of their spreads (10th to 90th percentile) within which a common end counts as one of them."""

MOST_BEHIND_MARKS: Final = 0.5
"""Share of operations after the last mark of a step, above which the host runs steps ahead."""

WIDE_TRIP: Final = 4.0
"""A pair of ranks with a least round trip this many times that of the quicker pairs always waited."""

RESUME_SLACK_NS: Final = 50_000
"""Compute that begins at most this long before the end of a wait resumed after it, on a CPU trace: the host gives both
times."""

RESUME_SLACK_SHARE: Final = 0.02
"""The same as a share of the wait, also on a CPU trace only."""

DEVICE_ROUNDING_NS: Final = 2_000
"""The same on a GPU trace: a device orders its kernels exactly, and older traces round both times to microseconds."""

DEVICE_DRIFT_SHARE: Final = 2e-5
"""The same as a share of the wait: two quartz clocks differ by as much, and a trace mixes a device's and a host's."""

ENOUGH_STEPS: Final = 3
"""Steps that an analysis wants before it stops accepting steps that some ranks lack: a median needs three."""

ENOUGH_WHOLE_STEPS: Final = 2
"""Steps on (nearly) all ranks that are better than more steps that up to half of the ranks lack: waits for those ranks
are unknown, and so are prices, while two steps show whether a difference comes again."""

NEARLY_ALL_RANKS: Final = 0.8
"""Share of ranks that must have a step whole, where too few steps are whole on all ranks."""

MOST_RANKS: Final = 0.5
"""`NEARLY_ALL_RANKS` if that leaves less than `ENOUGH_WHOLE_STEPS`: of fewer ranks a median of peers means nothing."""

CUT_STEP_SHARE: Final = 0.9
"""A step was cut if all ranks with messages that name no peer have fewer operations than this share of their fullest:
a reduction now and then is one of tens."""

WHOLE_STEP_SHARE: Final = 0.5
"""A step with fewer operations than this share of the rank's median step was cut, even if all members agree."""

ALIGN_LEAST_OVERLAP: Final = 0.5
"""Ragged recordings are aligned with at least this share of the shorter one inside the longer one."""

COUNTED_SHARE: Final = 0.8
"""Share of a group's operations with sequence numbers from which these match them: a tenth is lost at random.

Also the share of a rank's kernels with a duration from which its device counts as recorded: a tenth without one named
no innocent rank, three tenths did.
"""

EAGER_SPREAD: Final = 3.0
"""Sends hardly vary if their 90th percentile stays below this many medians: nothing delayed them."""

EAGER_SHARE: Final = 0.5
"""Sends that wait for their receiver vary as receives do; eager ones stay below this share of the receives'."""

LONG_TAIL_PERCENTILE: Final = 90
"""Percentile used as the longest sends and receives; the last tenth may be accidents."""

HELD_LEAD: Final = 1.5
"""A receive that is posted more than this many copies after its send finds a buffered send ended."""

HELD_END_SHARE: Final = 0.25
"""A send that waited for such a receive ends together with it, within this share of the send's duration."""

HELD_LEAST: Final = 2
"""Least number of such sends: one pair may be an accident."""

PROVEN_EAGER_SHARE: Final = 0.05
"""Share of the sends that must end before their receive was posted, if none is alone in its kernel."""

ALWAYS_BUFFERED_BYTES: Final = 1 << 14
"""Bytes of a message that NCCL buffers in any case: 16 KiB for each channel, and there is at least one."""

NEVER_BUFFERED_BYTES: Final = 1 << 27
"""Bytes of a message that NCCL never buffers: 4 MiB for each channel over NVLink, and there are at most 32."""

BUFFER_BYTES_A_CHANNEL: Final = 1 << 22
"""Bytes of a message that NCCL buffers at most for each channel: 4 MiB over NVLink, 1 MiB over anything else."""

BUFFERED_RECEIVE: Final = 3
"""Ratio to the fastest receive of its message below which a receive only copied data that had arrived before."""

COMMON_END_NS: Final = 30_000
"""Largest difference between the ends of both kernels of a message, beside the error of the clocks: across nodes the
last bytes and the flag after them take some ten microseconds."""

CANDIDATE_ENDS: Final = 2
"""Kernels before and after an end that are tried as its partner: a stage has two neighbours."""

COMMON_ENDS_LEAST: Final = 4
"""Messages that must end together before two lanes count as carrying the same ones: fewer happen by chance."""

COMMON_ENDS_SHARE: Final = 0.85
"""Share of a lane's messages that must be explained: the rest may be cut, or late by a disturbed clock."""

BY_CHANCE: Final = 0.3
"""Share of kernels that may end together by chance; with more, agreement proves nothing."""

TWINS_SHARE: Final = 0.5
"""Share of kernels that begin and end together on two ranks, from which the two do the same work and exchange none."""

LANE_MAJORITY: Final = 0.65
"""Share of a lane's messages that one other lane must explain for it to be the peer: with two peers each has half."""

LANE_ENDS_SHARE: Final = 0.05
"""Share of the messages of two lanes that must end together where sends go to buffers: receives that waited. A stage
that is slower than the one before it waits for the first micro-batch of a step only."""

BOTH_WAYS_SHARE: Final = 0.25
"""`LANE_ENDS_SHARE` for two lanes with messages in both directions: each of them explains more by itself."""

LANE_RIVAL: Final = 0.6
"""A lane is given to another only if its second-best partner explains less than this share of what the best does."""

MAX_LANES: Final = 16
"""Lanes of a rank that are tried against those of another: a stage has a few streams for messages."""

LARGEST_CORRECTION_NS: Final = 2.0**62
"""Bound on the correction of a clock by damaged times: 146 years, so that it fits an int64."""

MAX_CLOCK_RATE: Final = 3e-4
"""Rate by which two clocks may drift apart: crystals are within 100 parts in a million, and temperature adds some."""

CLOCK_CANDIDATES: Final = 8
"""Differences of two clocks that are followed through all steps: micro-batches repeat, so some nearly fit."""

CLOCK_RIVAL: Final = 0.8
"""Two clocks are compared only if the second-best difference explains less than this share of the best one's ends."""

MAX_KERNELS_COMPARED: Final = 128
"""Kernels of a step that are compared by their ends, all with all, to find the difference of two clocks."""

MAX_MESSAGES_ALIGNED: Final = 1024
"""Messages of a step that are compared by size, all with all, on one channel; a stage sends some tens."""

TIE_NS: Final = 1_000_000
"""Between two ways to join messages by size, ends that differ by this much more count half as much."""

LEAST_ENDS: Final = 4
"""Least compared ends of a stream: the clock's offset and drift use up two."""

LEAST_WIDER_ENDS: Final = 3
"""Ends of a kind that must agree on all ranks before it is taken from its stream: one more than offset and drift use
up. A kind that is taken in error stays open."""

LEAST_ALIGNED_ENDS: Final = 2
"""Least compared ends of a stream with known clocks: one end may meet another by chance."""

ENDS_COMPARED: Final = 128
"""Most compared ends of a stream, spread over the recording: more make nothing clearer."""

PLACES_COMPARED: Final = 4096
"""Most compared ends of a stream if each place of the step is compared: four steps of a thousand places."""

PAIRS_COMPARED: Final = 64
"""Most pairs of members that are compared by their ends at a place, spread over all: more make nothing clearer."""

LEAST_STEPS_BY_PLACE: Final = 3
"""Steps from which a place of the step is judged by itself: two ends may meet by chance, or by a clock's error."""

TOLD_SHARE: Final = 0.5
"""Share of a kind's calls on a stream that name their group, from which the others lost it: one in ten does."""

LEAST_BLIND_ENDS: Final = 12
"""Least ends that give clock and places: a line through the better half of fewer meets some by chance."""

LEAST_IN_ALL_TO_ALL: Final = 3
"""Least ranks that leave together before a kernel named after messages is an all-to-all; two may exchange."""

PLACES_TRIED: Final = 8
"""Places of a step from which a fit to the better half of the ends starts: one of them is of that half."""

ROUNDS_OF_FIT: Final = 6
"""Rounds in which a fit to the better half of the ends settles; it rarely needs more than three."""

APART_QUANTILE: Final = 0.75
"""Share of common ends that must agree: in a union of two groups half of the pairs with its first rank are false."""

FAR_LONGER: Final = 10.0
"""Transfers of most groups that take this many times as long as the quickest one's wait for another rank."""

TAIL_NS: Final = 5_000.0
"""Members of a collective leave within the tail of its transfer, ns: a few microseconds."""

TOGETHER: Final = 2.5
"""Ends that agree as well as the best within this factor agree: the tail's own spread is no larger."""

CLEARLY_APART: Final = 4.0
"""Ends that differ by this factor more than those of members are ends of different groups."""

LEAST_TAIL_NS: Final = 1_000.0
"""Least difference of ends that is assumed, ns: older traces have whole microseconds."""

CLEAREST_TAIL_NS: Final = 100.0
"""Least difference of ends that is assumed, ns, if the tails of a stream's clear places show it: traces with fractions
of a microsecond still round."""

PROVING_LEAD: Final = 3.0
"""A rank that came last by this factor more than ends differ shows which ranks waited for it."""

MOST_CLUSTERED: Final = 1024
"""Ranks of a class that are compared each with each where no mesh is given: the work is quadratic."""

MOST_WAYS: Final = 4096
"""Most divisions of the ranks that are tried: 1,024 ranks have 385; numbers with many divisors have too many."""

MOST_AXES: Final = 5
"""Axes of a mesh that is looked for: tensor, context, pipeline, and data parallelism in two parts."""

WHOLE_REPEATS: Final = 2
"""Repetitions that make a pattern, of most of a recording: the end of a step breaks the pattern of its layers."""

RAGGED_RIMS: Final = (0.0, 0.05, 0.1, 0.2)
"""Shares of a recording that are left off its end in turn: the last kernels of other streams may be missing there."""

REPEATING_SHARE: Final = 0.6
"""Share of a rank's operations that must repeat: the first step of a program often runs something more."""

BORDER_SHARE: Final = 0.5
"""Share of a step by which an operation may lie outside the step that it is counted to: a device runs behind its host
by less, and one that is counted to the wrong step lies in the middle of another."""

RARE_KINDS: Final = 8
"""Kinds of communication that distinguish steps from the shorter repetitions in them: a job has fewer kinds in all."""

EVEN_SIZES: Final = 0.02
"""Share of the usual number of elements by which all-to-alls must differ, so that work is compared with it."""

MOST_DEALT: Final = 64
"""All-to-alls at one place of the step that are compared by work in pairs: 2 000 pairs give a steady median."""

HOST_GAP_NS: Final = 10_000
"""A device that idles for longer than this between two kernels waits for its host: launches take a few µs."""

LIKE_SHARE: Final = 0.1
"""Largest difference of two kernels' shares of time beside communication that counts as equal."""

DRIFT_NS: Final = 100_000
"""Two clocks may drift apart by this much over a recording of seconds: 20 µs a second are common."""

MOST_CHOICES: Final = 2000
"""Ways to give the groups of a rank to its threads that are tried; four groups out of six have some hundreds."""

QUEUE_THREADS: Final = 2
"""Threads that serve one group of Gloo: as many as `ProcessGroupGloo` makes unless it is built with other options."""

PEERS_COMPARED: Final = 8
"""Members with which each rank of a group is compared: all pairs of a large group would be too many."""

LAUNCH_NS: Final = 20_000
"""How long after its launch a kernel may begin on an idle device: 3 to 10 µs are usual, 20 µs on a busy bus. A longer
gap behind a launch is not the host's."""

SAME_WINDOW: Final = 0.25
"""Share of the least time between two windows by which the windows of two ranks may begin apart and be the same one."""
