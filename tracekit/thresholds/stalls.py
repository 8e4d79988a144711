"""Thresholds of stalls that move from rank to rank."""

from typing import Final

RANKS_AT_ONCE: Final = 0.75
"""Share of the ranks that stall in one step, from which the stall is common: pipeline stages may hide some of it."""

EXPLAINED: Final = 0.8
"""Share of an excess, or of the time stalled, that a cause must account for to be named."""
