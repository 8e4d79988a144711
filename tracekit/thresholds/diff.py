"""Thresholds of `diff`, which compares two runs."""

from typing import Final

LEVEL: Final = 0.1
"""Probability, two-sided, of a false difference between equal steps: one in twenty each way, which three steps
against three can just reach."""

LEAST_STEPS: Final = 3
"""Least steps of each run: with two against two no order is rarer than one in three."""

LEAST_CHANGE: Final = 0.02
"""Share of the step below which a change does not count: the threshold of `slowrank`."""

RESAMPLES: Final = 2_000
"""Bootstrap samples of an interval: its ends vary by a hundredth of its length."""

SEED: Final = 20_260_101
"""Seed of the bootstrap: the same runs give the same interval."""

KERNELS_KEPT: Final = 200
"""Kernels compared one by one, longest first: a model has some hundreds. Selection by time, not by change, keeps the
test valid."""
