"""Bounds by which `slowrank` names a rank as slow, or does not."""

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

PRICE_DOUBT: Final = 2.0
"""Factor by which a price may be too low, up to the excess of its cause: in generated jobs at the threshold the model
found half of the true cost or more, so only a price below half of the threshold is harmless."""

COVERAGE_WHOLE: Final = 0.995
"""Matched share of exposed communication that counts as all of it: less than a percent changes no verdict."""

LEAST_MATCHED: Final = 0.1
"""Matched share of the exposed communication below which a job is not called healthy: hardly any wait was seen."""

EXPLAINED_ERRORS: Final = 2.0
"""Errors of the step model that are subtracted from a saving before it is proven: one for the mean error, one for its
uneven distribution."""

JOINED_ERROR: Final = 0.005
"""Largest error, as a share of the step, of a model in which ranks of a stage wait for each other in unknown groups: a
wait that it reproduces so closely is not a transfer."""

CANDIDATE_SHARE: Final = 0.5 * MIN_LOST_SHARE
"""Excess of own time, as a share of the step, from which a rank is suspected: two such ranks may cost 2 % together."""

Z_LIMIT: Final = 4.5
"""Standard errors that a rank's excess must exceed: one false alarm in about 300 000 normal trials, so that a thousand
ranks still give less than one in a hundred; the noise is heavier-tailed than normal, hence no smaller."""

FAINT_CONFIDENCE: Final = 0.99
"""Confidence, over all ranks, from which an excess that is not significant excludes a healthy answer."""

PROVING_STEPS: Final = 10
"""Steps to record where noise hides an excess: three times as many as usual, for 1.7 times the z."""

TIME_SLICE_NS: Final = 4_000_000.0
"""Time that a transfer by threads of a host may take longer: a thread waits for one slice of Linux's scheduler."""

ONE_STEP_P: Final = 0.05
"""With a single step a rank is named if coming last so often has at most this probability (all ranks tested)."""

LEAST_CHANCE: Final = 1e-300
"""Smallest probability that is turned into standard errors: below it the normal quantile is infinite."""

NOISE_FLOOR: Final = 5e-4
"""Share of the step below which own times are never trusted to differ (timestamps, launch jitter)."""

SUSPECT_SHARE: Final = 0.2
"""A further suspect must cost at least this share of the worst one's loss."""

ALSO_SUSPECT: Final = 0.05
"""Share of the step from which a further suspect always counts: once the worst one is cured, it is the worst."""

COLUMN_NOISE_FROM: Final = 5
"""Ranks from which a group shows how much they vary in one step: among fewer, one slow rank is most of the spread."""

STEP_SHARE: Final = 0.3
"""A step counts as slow on a suspect when its excess exceeds this share of its worst step's."""

MOST_CONFIDENCE: Final = 0.999
"""Confidence is never reported above this: the noise need not be normal that far out."""

MOST_GAIN: Final = 0.99
"""A cure is never reported to save more than this share of the step: the rest must stay positive."""

RECURRING_SHARE: Final = 0.25
"""Share of its mean that a recurring excess keeps without its longest step: one in two steps keeps half."""

OTHER_STEPS: Final = 3
"""Steps in which a rank must be as fast as its peers before one long step counts as an accident.

In fewer steps an intermittent fault may show only once; in more it would have shown again."""

OTHER_STEPS_OF_FIRST: Final = 2
"""`OTHER_STEPS` if the long step is the first one captured, in which a profiler starts."""

OTHER_STEPS_OF_DEVICE: Final = 9
"""`OTHER_STEPS` if the device was slow throughout the long step, which no accident of one operation explains.

A fault in one step of four misses nine other steps in one job of thirteen."""

THROTTLED_SHARE: Final = 0.75
"""Share of a step's compute that must be longer for a device to be slow: experts or attention alone are half of it."""

THROTTLED_KERNELS: Final = 8
"""Kernels that must be longer for a device to be slow throughout a step: an accident lengthens one or two."""

STAGE_TELLING_PEERS: Final = 3
"""Least ranks of a stage to distinguish a long stage from a slow rank: fewer may all be slow, or one short of work."""

STAGE_MIN_PEERS: Final = 2
"""Least pipeline stages that are compared with each other."""

STEP_PARTS: Final = 8
"""Parts of a step in which peers are compared where work moves between ranks within the step."""

NO_WORK_NS: Final = 1000.0
"""Own time within which nothing was done: clocks of traces tick in microseconds."""

ANSWER_NS: Final = 50_000
"""An operation posted within this time after another one ended may have waited for it."""

QUEUED_NS: Final = 20_000
"""An operation that starts within this time of the end of the one before it on its stream was queued."""

UNEVEN_RATIO: Final = 1.4
"""Overdispersion of the work between ranks (variance of blocks over the sum of their parts' variances, 1 where
delays are independent from kernel to kernel) from which work is uneven rather than noisy."""

UNEVEN_BLOCKS: Final = 8
"""Blocks a step that are compared by their variance with the operations in them."""

DATA_VARIATION: Final = 0.03
"""Least coefficient of variation of attention time between peers that makes an imbalance follow the data."""

ATTENTION_NAMED: Final = 0.02
"""Attention below this share of the other compute means that the trace does not name its attention kernels."""

ATTENTION_VARIATION: Final = 2.0
"""Attention must vary this many times as much as the other compute: a slow device slows both alike."""

MATES_SHARE: Final = 0.33
"""Least share of a rank's excess that its documents cause on every other stage: stages differ in layers."""

MATES_ALIKE: Final = 0.8
"""Correlation between changes of work on two stages of a replica, over replicas and steps, that shows documents."""

MATES_ENTRIES: Final = 6
"""Least changes for that correlation: with six, chance gives it in one job of forty."""

DOCUMENTS_REACH: Final = 2.0
"""Largest ratio of a mean excess to the largest change by documents in a step of another replica; documents do not
cause more."""

NODE_EQUALITY: Final = 0.5
"""Ratio of the least to the largest excess of ranks slow for one reason: their stages differ in work and slack."""

NODE_APART: Final = 2.0
"""Ratio of their least excess to the largest of their peers: below it they are the end of a spread."""

LEVELLING_GAIN: Final = 2.0
"""Levelling all ranks must save this many times as much as curing the suspects for the data to be the cause."""

STAGE_GAIN: Final = 1.05
"""A stage must cost this many times as much as the slow ranks: if both explain the same cost, the ranks are blamed."""

RANKS_SAMPLED: Final = 16
"""Ranks to read the events of, to see whether an imbalance follows the data; reading all would take minutes."""

PEERS_SAMPLED: Final = 6
"""Peers to read the events of, to explain a suspect: a median needs few."""

LINK_RATIO: Final = 1.25
"""A link is slow when its transfers take this much longer than those of its peers for the same message."""

LINK_RATIO_OF_TWO: Final = 1.6
"""The same if there is one peer only: its own spread is unknown."""

USUALLY_SLOW: Final = 2.0
"""Transfers of most channels that take this many times as long as the quickest ones are waits for another rank."""

NETWORKS_RATIO: Final = 20.0
"""A link between nodes takes at most this many times as long as one inside a node by design: 450 against 25 GB/s."""

NODE_RANKS: Final = 16
"""No node holds more devices: more ranks than that run on several, if nothing names the nodes."""

LINK_REPEATS: Final = 3
"""Steps from which messages are compared with those at the same place of other steps: a median needs three."""

LINK_NOISE_SHARE: Final = 0.02
"""Transfers are never trusted to differ by less than this share of the peers' transfer."""

CLOCK_DOUBT: Final = 2.0
"""A message's transfer must exceed its peers' by this many times the doubt about the clocks of its two ranks."""

CONTENTION: Final = 0.3
"""Share of its time that compute may save at the most without communication beside it: it is 5–40 % longer there."""

MAJORITY: Final = 0.5
"""A cause must explain at least half of the excess own time."""

PAUSES_A_STEP: Final = 8
"""Most long gaps in a step that are pauses: more come from a slow host, which delays every launch a little."""

KERNELS_SHOWN: Final = 0.1
"""A kind of kernel is shown as evidence where it makes up more than this share of the excess."""

ATTENTION_ALONE: Final = 0.7
"""Share of the excess that attention must explain before the documents of a suspect excuse it."""

PRODUCTS_STEADY: Final = 0.2
"""Upper bound of the relative excess of matrix products over that of attention: a slow device slows both."""

ROLE_SHARE: Final = 0.1
"""Share of the step up to which host work of all ranks with tensor index 0 is the job's design, not a fault."""

ROLE_EQUALITY: Final = 0.5
"""Least share of the largest excess that the smallest one must reach: one of the ranks may be slow as well."""

ROLE_RANKS: Final = 2
"""Least ranks of that role a pipeline stage: a single one shows no pattern."""

DUMP_LITTLE: Final = 0.5
"""In dumps a rank that others wait for waits less than this share of what its peers wait."""

DUMP_DOUBT: Final = 2.0 * MIN_LOST_SHARE
"""In dumps an excess from this share of the step is no proof of health even if it is not significant."""

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

ROUND_TRIP: Final = 2
"""An all-reduce moves each byte twice, other collectives less."""

UNSEEN_REPLAYED: Final = 1.0
"""Most unrecorded ranks for each recorded one that are replayed as typical: with more, most waits would be invented."""

UNSEEN_ERROR: Final = 2.0 * MIN_LOST_SHARE
"""Share of the step that such a replay may miss: prices lose twice that, so it names ranks that cost 10 % or more."""

ODD_STEP: Final = 0.2
"""Share by which a step is longer than the usual ones, so that its additional work is looked for: less hardly moves a
mean step, and steps with different documents vary by as much."""

FEWEST_USUAL_STEPS: Final = 2
"""Least steps that do the same before a different one counts as odd, and least steps left without it."""

STEADY_LEVEL: Final = 0.03
"""Largest relative deviation of a typical rank's kernel that does not follow the data: clocks vary by 1–2 %."""

STEADY_KERNELS: Final = 4
"""Such kernels a step from which a device counts as slow: one or two may be long for a reason of their own."""

STEADY_PEERS: Final = 4
"""Least ranks of the same work that show which kernels do not follow the data: of three, two agree by chance."""

STEADY_TIMES: Final = 3.0
"""Times the excess on any other rank, in any step, that these kernels must be longer, in every step."""

MOSTLY_ONE: Final = 0.4
"""Share of an imbalance from which one rank is named: uneven documents gave up to 0.32, hidden culprits from 0.49."""

LONGEST_PRICED: Final = 3
"""Ranks that work longest beyond their peers; each is priced alone: the cause of most of the loss is among them."""

STOOD_STILL: Final = 0.9
"""Least share of an operation without overlapping compute if its rank waits at once: a kernel's tail may overlap."""
