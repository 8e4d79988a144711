"""Thresholds that separate recordings, and the groups of streams, by the ends of collectives."""

from typing import Final

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
