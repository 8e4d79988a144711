"""Thresholds of stalls that move from rank to rank."""

from typing import Final

STALL_SHARE: Final = 0.005
"""Share of the step below which a gap is no stall: many short ones are the pace of a host, not a pause."""

FEWEST_STALLS: Final = 3
"""Stalls from which they recur: one or two in a recording are accidents."""

STEPS_STRUCK: Final = 0.5
"""Share of the steps in which some rank must stall: in fewer the typical step is healthy."""

RANKS_AT_ONCE: Final = 0.75
"""Share of the ranks that stall in one step, from which the stall is common: pipeline stages may hide some of it."""

CHANCE_OF_ONE_RANK: Final = 0.01
"""Probability below which a rank has more stalls than chance explains: then it is slow itself."""

EXPLAINED: Final = 0.8
"""Share of an excess, or of the time stalled, that a cause must account for to be named."""

RANKS_EXPLAINED: Final = 6
"""Ranks to read the events of for the cause of moving stalls, listed in the answer: the longest stalls first."""
