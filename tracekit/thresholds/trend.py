"""Thresholds of `trend`, which follows a job over many windows."""

from typing import Final

LEVEL: Final = 0.01
"""Probability of any claim about a job that does not change, over all tests of one kind: a timer runs them for every
window, and one false alarm in twenty would be one a day."""

INTERVAL_LEVEL: Final = 0.05
"""Probability that the drift lies outside its interval."""

LEAST_POINTS: Final = 8
"""Windows from which on something is claimed: a drift over eight shows even if one of them is out of order."""

LEAST_SEGMENT: Final = 3
"""Windows of one level: fewer are outliers, which no rank test separates from chance."""

LEAST_CHANGE: Final = 0.02
"""Share of the step below which a change does not count, as in `diff` and `slowrank`."""

OWN_SHARE: Final = 0.5
"""Least share of a rank's rise over its peers by which its own time must rise: otherwise the peers became faster."""

MOST_POINTS: Final = 256
"""Points of one series; more are taken together in blocks of consecutive ones, because a slope looks at all pairs."""

ARRANGEMENTS: Final = 20_000
"""Random orders that give the probability of a change; rarer changes are bounded by formulas."""

SEED: Final = 20_260_101
"""Seed of the random orders: the same run gives the same answer."""

MOST_SERIAL: Final = 0.95
"""Correlation of one window and the next from which on nothing more can be concluded."""

STAIRS_BETTER: Final = 0.8
"""Share of the drift's error below which levels describe a series better: for a line with noise both err equally."""

SERIAL_TOLD: Final = 0.2
"""Correlation from which on a note reports it: two windows of three count."""

DAYS: Final = 2.0
"""Days that windows must span for a daily swing to be tested: once is not daily."""

LEAST_OF_SWING: Final = 12
"""Windows for a daily swing: two days of six, or six days of two."""

MOST_OF_DAY_UNSEEN: Final = 0.5
"""Share of the day in which no window may lie: over less than half a day a swing cannot be separated from a drift."""
