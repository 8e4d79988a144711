"""Thresholds of `diff`, which compares two runs."""

from typing import Final

LEVEL: Final = 0.1
"""Chance, both directions together, that equal steps are called different: one in twenty each way, which three steps
against three can just reach."""

LEAST_STEPS: Final = 3
"""Least steps of each run: with two against two no order is rarer than one in three."""

LEAST_CHANGE: Final = 0.02
"""Share of the step below which a change does not count: as `slowrank` counts the cost of a rank."""

RESAMPLES: Final = 2_000
"""Bootstrap samples of an interval: its ends vary by a hundredth of its length."""

SEED: Final = 20_260_101
"""Seed of the bootstrap: the same runs give the same interval."""

KERNELS_KEPT: Final = 200
"""Kernels that are compared one by one, the longest first: a model has some hundreds. Chosen by time and not by
change, they leave the test what it is."""
