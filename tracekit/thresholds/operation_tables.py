"""Thresholds of answers about operation tables, in which every dependency between operations is known."""

from typing import Final

BATCHES_VARY: Final = 0.02
"""Coefficient of variation that all places of a micro-batch must share for its work to be uneven: less is free."""
