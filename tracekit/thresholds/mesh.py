"""An axis that no description names: how much it communicates, and how."""

from typing import Final

MANY_CALLS: Final = 24
"""Collectives of a group from which it may be tensor or context parallel: those communicate in every layer."""

MOSTLY_EXPOSED: Final = 0.6
"""Share of collectives that compute waits for, above which an axis is inside the layers: data parallelism overlaps."""

ALTERNATING: Final = 0.93
"""Share of collectives that differ in kind from the one before, above which gathers and scatters take turns (tp)."""
