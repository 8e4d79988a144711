"""Bounds by which `slowrank` names a rank as slow, or does not."""

from math import log
from typing import Final

CLOCK_DOUBTS: Final = 3.0
"""Multiple of the median difference of common ends that two clocks may differ by; few ends of collectives exceed it."""

REDUCED_BY_PIPELINE: Final = 0.01
"""Largest ratio of elements of collectives to those of messages in a job of one pipeline: norms, losses, flags."""

CALLS_OF_PIPELINE: Final = 4
"""Least messages a collective in a job of one pipeline: two a micro-batch, with one norm a step."""

SIZES_TOLD: Final = 0.8
"""Share of operations that must have a size, so that sizes are compared and not counts."""

AXIS_RIVAL: Final = 0.6
"""An axis is the pipeline if no other axis explains more than this share of the messages that it does."""

MIN_LOST_SHARE: Final = 0.02
"""Below 2 % of the step no rank is named (contract): diurnal clock variation alone moves steps by 1–2 %."""

MAJORITY: Final = 0.5
"""Half: what a cause must explain of an excess, how many of several must agree, how alike things of one reason are, and
how much of a device's common factor each of its kernels must share."""

MINOR: Final = 0.25
"""Share of the largest below which a part does not count beside it: as a further suspect, a slow step, a kernel that
varies as well, or the matched part of the communication beside the rest. An excess that recurs keeps more of its mean
without its longest step: one in two steps keeps half."""

CLEARLY_MORE: Final = 2.0
"""Ratio from which one quantity exceeds another by more than noise, documents or a different design explain: twice."""

KIND_RATIO: Final = 1.25
"""Ratio from which one of several links or hosts is slow, and from which kernels of one name, or steps, do other work:
those of one kind vary less for the same work. Shapes double kernels, and a checkpoint lengthens a step."""

FAR_MORE: Final = CLEARLY_MORE * KIND_RATIO
"""Ratio from which one quantity exceeds another by more than a healthy design explains, and the variation within a kind
on top of it: NVLS, tuning and full queues explain twice."""

CANDIDATE_SHARE: Final = MAJORITY * MIN_LOST_SHARE
"""Excess of own time, as a share of the step, from which a rank is suspected: two such ranks may cost 2 % together."""

CLEAR_SHARE: Final = CLEARLY_MORE * MIN_LOST_SHARE
"""Share of the step that counts although as much as the threshold of it may be noise or the model's error: a further
suspect that is the worst once the first one is cured."""

LITTLE_SHARE: Final = MINOR * MIN_LOST_SHARE
"""Share of the step that is nothing: devices of one kind differ by so much. A gap below it is the pace of a host, not a
stall, and a wait that a model reproduces so closely is not a transfer."""

COVERAGE_WHOLE: Final = 1.0 - LITTLE_SHARE
"""Matched share of exposed communication that counts as all of it: the rest is nothing."""

Z_LIMIT: Final = 4.5
"""Standard errors that a rank's excess must exceed: one false alarm in about 300 000 normal trials, so that a thousand
ranks still give less than one in a hundred; the noise is heavier-tailed than normal, hence no smaller."""

CHANCE: Final = 0.01
"""Probability, over all ranks, below which chance does not explain an excess or the number of a rank's stalls."""

TIME_SLICE_NS: Final = 4_000_000.0
"""Time that a transfer by threads of a host may take longer: a thread waits for one slice of Linux's scheduler."""

ONE_STEP_P: Final = 0.05
"""With a single step a rank is named if coming last so often has at most this probability (all ranks tested)."""

PROVING_STEPS: Final = round(log(ONE_STEP_P) / log(1.0 - MINOR))
"""Steps to record where noise or few steps hide an excess, ten: a fault in one step of four misses all of them in one
job of twenty. They are three times as many as usual, for 1.7 times the z. With so many, the long step among them is an
accident although the device was slow throughout it, which no accident of one operation explains."""

COLUMN_NOISE_FROM: Final = 5
"""Ranks from which a group shows how much they vary in one step: among fewer, one slow rank is most of the spread."""

NOISE_FLOOR: Final = LITTLE_SHARE / Z_LIMIT
"""Share of the step below which own times are never trusted to differ (timestamps, launch jitter): no excess that is
nothing anyway becomes significant because times hardly vary."""

MOST_CONFIDENCE: Final = 0.999
"""Confidence is never reported above this: the noise need not be normal that far out."""

MOST_GAIN: Final = 0.99
"""A cure is never reported to save more than this share of the step: the rest must stay positive."""

NO_ACCIDENT: Final = 3
"""Times from which something is no accident: stalls or late calls of one step, stalls of a recording, and steps in
which a rank is as fast as its peers before one long step is called an accident. One or two happen by chance; in fewer
steps an intermittent fault may show only once, in more it would have shown again. One less where the long step is the
first one captured, in which a profiler starts."""

STAGE_TELLING_PEERS: Final = 3
"""Least ranks of a stage to distinguish a long stage from a slow rank: fewer may all be slow, or one short of work."""

STEP_PARTS: Final = 8
"""Parts of a step in which peers are compared where work moves between ranks within the step. Kernels or pauses, one a
part, have a reason that lasted throughout it: an accident lengthens one or two kernels, a profiler that starts a few,
and a slow host delays every launch a little."""

NO_WORK_NS: Final = 1000.0
"""Own time within which nothing was done: clocks of traces tick in microseconds."""

ANSWER_NS: Final = 50_000
"""An operation posted within this time after another one ended may have waited for it."""

QUEUED_NS: Final = 20_000
"""An operation that starts within this time of the end of the one before it on its stream was queued."""

USUAL_VARIATION: Final = 0.03
"""Largest relative variation between devices or links of one kind, for work that does not follow the data: clocks vary
by 1–2 %."""

CORRELATION_ENTRIES: Final = 6
"""Independent entries from which a correlation is meaningful: with six, chance gives 0.8 in one job of forty."""

RANKS_SAMPLED: Final = 16
"""Ranks to read the events of, to see whether an imbalance follows the data; reading all would take minutes."""

PEERS_SAMPLED: Final = 6
"""Peers to read the events of, to explain a suspect, and ranks that are priced one by one, each by a replay: a median
needs few, and the longest come first."""

UNEVEN_RATIO: Final = KIND_RATIO**2
"""Overdispersion of the work between ranks (variance of blocks over the sum of their parts' variances, 1 where
delays are independent from kernel to kernel) from which work is uneven rather than noisy: a ratio of variances is the
square of one of deviations."""

NETWORKS_RATIO: Final = 20.0
"""A link between nodes takes at most this many times as long as one inside a node by design: 450 against 25 GB/s."""

NODE_RANKS: Final = 16
"""No node holds more devices: more ranks than that run on several, if nothing names the nodes."""

NEARLY_ALL: Final = 1.0 - MINOR
"""Share that leaves room for a minor part alone: of a device's kernels that are longer, of ranks that stall together,
of an excess that attention or one cause explains. Correlation between changes of work on two stages of a replica, over
replicas and steps, that shows documents."""

STEADY_LEAST: Final = 4
"""Least ranks of the same work that show which kernels do not follow the data, and least such kernels a step: of three,
two agree by chance."""

KERNELS_SHOWN: Final = 0.1
"""A kind of kernel is shown as evidence where it makes up more than this share of the excess."""

RANKS_LISTED: Final = 6
"""Ranks or steps that a reason lists; the rest are counted."""

MEMBERS_LISTED: Final = 8
"""Members of a process group that an error lists."""

WORST_WORKERS: Final = 0.03
"""Share of the workers that M_W of the OSDI'25 paper cures: its authors take the worst 3 %, at least one (Eq. 5)."""

SLOWEST_BYTES_PER_NS: Final = 1.0
"""1 GB/s: large models are not trained on networks slower than Ethernet of 10 Gbit/s."""

SLOWEST_START_NS: Final = 1_000_000
"""A collective begins within a millisecond on any network, however many ranks it has."""

MOSTLY_ONE: Final = MAJORITY * NEARLY_ALL
"""Share of an imbalance from which one rank is named, half of what a minor part leaves: uneven documents gave up to
0.32, hidden culprits from 0.49."""

STOOD_STILL: Final = 0.9
"""Least share of an operation without overlapping compute if its rank waits at once: a kernel's tail may overlap."""

MOST_STRETCHED: Final = 1.0 - 1.0 / CLEARLY_MORE
"""Largest part of the shared time that communication adds to a kernel: it takes `CLEARLY_MORE` times as long at most,
and twice as long was the worst seen."""

FAST_BUS_GB_S: Final = 100.0
"""Bus bandwidth that only healthy links reach: 145 to 370 GB/s over NVLink, as much with one network card a GPU."""

SOLE_GROUP_SHARE: Final = 0.15
"""Share of a step that the only group could save at `FAST_BUS_GB_S`, from which a job is not called healthy unseen."""

FEW_LINKS: Final = round(4 / MINOR)
"""Channels of messages in a short pipeline, of up to nine stages: a rank has four, to and from both neighbours, and
among more channels these are a minor part."""

RANKS_READ: Final = STEADY_LEAST * RANKS_SAMPLED
"""Most ranks to read kernels of, to see which follow the data: `RANKS_SAMPLED` of each of a few stages, in whole
replicas where possible. A dozen replicas of a pipeline show the effect of the data on all."""


# Hosts that launch late, or slowly.

LAUNCHED_NS: Final = 50_000
"""A kernel that starts within this time of its launch found an idle device: a launch takes 5 to 30 us to reach it."""

HOST_SILENT_NS: Final = 100_000
"""A host that works records a call or an operator at least so often: Python between two of them takes 10 to 60 us. Gaps
of a device up to this length may be the pace of a usual host; longer ones are not."""

QUEUE_ROOM: Final = 32
"""Kernels that wait for a device with a queue that surely has room: it takes a thousand, rarely less. When it is full,
a host waits in its launch."""

OPERATOR_NS: Final = 2_000_000
"""An operator that lasts longer counts by what is recorded inside it: it may wait for its device, or for others."""


# Bounds by which `slowrank` names the mechanism of a cause.

NAMED_SHARE: Final = 0.8
"""Share of the excess that a mechanism explains before it is named; else the two best are listed."""

RIVAL_SHARE: Final = 0.5
"""Share from which a second explanation of the same excess keeps the first one from being named."""

MECHANISMS_LISTED: Final = 2
"""Mechanisms of a suspect that are listed: the two between which a further recording decides."""

LEAST_KIND: Final = 0.03
"""Share of compute from which a kind of kernels shows whether it is longer: a tenth of it is 0.3 % of the step."""

STEADY_KIND: Final = 0.25
"""A kind that is longer by less than this part of the common factor counts as not longer."""

GROWTH: Final = 1.5
"""Ratio of the last to the first excess from which the excess counts as growing."""

GROWTH_RANKED: Final = 0.8
"""Least rank correlation of excess and step for growth: of five steps, chance exceeds it in one job of fifteen."""

BESIDE_COMMUNICATION: Final = 0.1
"""Share beside communication from which the length of a kernel says nothing about its device."""

GAP_NS: Final = 100_000
"""Shortest idle time of a device that is looked into: shorter ones are launches."""

GAP_PART: Final = 0.1
"""Part of the longest gap from which others are looked into as well."""

GAPS_READ: Final = 400
"""Longest gaps of a rank that are looked into."""

RETURN_NS: Final = 100_000
"""A call that waits for the device returns within this time of its end."""

INSIDE: Final = 0.5
"""Share of a span's whole time in gaps from which it may explain them: spans around whole steps lie mostly outside."""

QUOTA_PERIOD_NS: Final = 100_000_000
"""Period of Linux's quota of processor time, `cpu.cfs_period_us`, unless it was changed."""

QUOTA_CHANCE: Final = 0.01
"""Most probability by chance (Rayleigh's test) of pauses at one phase of that period."""

DRIFT_SHARE: Final = 0.005
"""Ranks with equally long steps, to within this share of the step, no longer drift apart in a replay."""

MOST_REPEATS: Final = 4
"""Most repetitions of a run of steps in a replay; ranks without waits for each other may drift apart forever."""

ANSWERED_NS: Final = 5_000
"""A collective that begins within this time of the end of another one, and could have begun long before, waited for it:
an event between two streams takes a few microseconds."""
