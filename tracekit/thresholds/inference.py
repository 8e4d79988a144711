"""Thresholds of inference: recordings and groups by the ends of collectives, peers by schedules, axes by their use."""

from typing import Final

# Ends of collectives separate recordings, and the groups of streams.

ENDS_ELSEWHEN_NS: Final = 3600 * 1_000_000_000
"""Between recordings of ranks that share no operation, ns: clocks of one job's hosts differ by seconds at the most."""

ENDS_LEAST: Final = 4
"""Least common collectives of two ranks to test that their ends fit a line: three nearly always do."""

ENDS_MISFIT: Final = 0.15
"""Median miss of a common line, of the median time between ends. Ranks of one job: 0.002 on GPUs, up to 0.12 on Gloo.

Ranks of two jobs that have the same layout: 0.2 to 3, because the differences of their steps add up.
"""

ENDS_TAIL: Final = 2.0
"""The same error, relative to the time of the member that came last: members leave within the operation's own time."""

ENDS_ODD_NS: Final = 30_000.0
"""The same miss of two devices that were not recorded together, where those of most pairs agree to microseconds."""

ENDS_MOSTLY: Final = 0.5
"""Share of pairs of ranks with well-agreeing ends from which on the others count as odd."""

ENDS_PAIRS: Final = 3
"""Pairs of ranks with many common ends that agree so well, from which others count as odd: fewer may by chance."""

ENDS_MOST_RANKS: Final = 0.6
"""Share of the ranks that the largest recording holds, if ends that must agree so well set others apart."""

ENDS_SHIFTS: Final = 16
"""Largest shift in numbering between two windows before their ends are attributed to different recordings."""

ENDS_MATCHED: Final = 300
"""Ends of a rank that are compared with all of another rank: enough to count by, few enough to square."""

ENDS_WIDTH_NS: Final = 20_000
"""Difference of two common ends on a device, ns: the tail of a transfer, and the drift of clocks within a window."""

ROUNDS_OF_CLOCKS: Final = 3
"""Rounds in which groups give clocks and clocks give groups: each joins ranks along one more axis, of at most four."""

ENDS_TOGETHER: Final = 0.5
"""Share of ends that meet under one difference of clocks from which two ranks ran together; by chance a tenth does."""

ENDS_NEARLY_ALL: Final = 0.75
"""The same of two devices, where most pairs agree to microseconds."""

ENDS_DRIFT: Final = 0.01
"""Drift between two clocks that no host has: crystals differ by 1e-4 at the most."""

# Messages of pipelines without peers: how well the order of a schedule must fit them.

DEALT_MARGIN: Final = 0.5
"""A stage's messages are assigned to its neighbours only if any other way has misfits in this many more steps out of
one: a message at the wrong neighbour misfits wherever a rank waited for the right one."""

BACKWARD_LONGER: Final = 1.25
"""Backward work takes twice as long as forward work, or three times; by this much they are clearly of two kinds."""

DEALT_MISFITS: Final = 0.1
"""Share of a stage's messages that may misfit: a slow link is late in its own replica, and clocks are not exact."""

CLEARLY_DEALT_MISFITS: Final = 0.25
"""The same where every other way has twice the misfits: transfers beside compute take longer than the quickest ones."""

MOST_DEALT_MESSAGES: Final = 256
"""Messages of a stage and step assigned to its neighbours: 64 micro-batches; the work grows with the cube."""

MOST_DEALT_STEPS: Final = 64
"""Steps, of all replicas, in which messages are compared: more make nothing clearer."""

# An unnamed axis by the amount and the kind of its communication.

MANY_CALLS: Final = 24
"""Collectives of a group from which it may be tensor or context parallel: those communicate in every layer."""

MOSTLY_EXPOSED: Final = 0.6
"""Share of collectives that compute waits for, above which an axis is inside the layers: data parallelism overlaps."""

ALTERNATING: Final = 0.93
"""Share of collectives that differ in kind from the one before, above which gathers and scatters take turns (tp)."""

UNEVEN_SIZES: Final = 1 / 8
"""Share of all-to-alls that must differ in elements for them to send tokens: another number goes to experts each
time, and back, and again in backward and recomputation, so that one in six differs. Sequence parallelism moves
heads in the same few sizes in each of many layers."""

RING_GAP_NS: Final = 100_000
"""Ranks of a ring send and receive within this time of each other, ns: a stage computes for far longer in between."""

RING_SHARE: Final = 0.9
"""Share of messages between two ranks that go both ways at once: a pipeline's first and last ones go alone, in every
step, and windows may cut a ring's."""
