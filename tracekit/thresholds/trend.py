"""How a job changes over many windows."""

from typing import Final

LEVEL: Final = 0.01
"""Chance that anything is claimed of a job that does not change, all tests of one kind together: a timer asks every
window again, and one false alarm in twenty would be one a day."""

INTERVAL_LEVEL: Final = 0.05
"""Chance that the drift lies outside its interval."""

LEAST_POINTS: Final = 8
"""Windows from which on something is claimed: a drift over eight shows even if one of them is out of order."""

LEAST_SEGMENT: Final = 3
"""Windows of one level: fewer are outliers, which no rank test separates from chance."""

LEAST_CHANGE: Final = 0.02
"""Share of the step below which a change does not count, as in `diff` and `slowrank`."""

OWN_SHARE: Final = 0.5
"""Share of a rank's rise beside its peers by which its own time rises at least: else the peers became quicker."""

MOST_POINTS: Final = 256
"""Points of one series; more are taken together in blocks of consecutive ones, because a slope looks at all pairs."""

ARRANGEMENTS: Final = 20_000
"""Random orders from which the chance of a change is counted; rarer ones are bounded by formulas."""

SEED: Final = 20_260_101
"""The same run gives the same answer."""

MOST_SERIAL: Final = 0.95
"""Correlation of one window and the next from which on nothing more can be concluded."""

STAIRS_BETTER: Final = 0.8
"""Share of a drift's misses below which levels describe a series better: of a line with noise they miss as much."""

SERIAL_TOLD: Final = 0.2
"""Correlation from which on a note reports it: two windows of three count."""

DAYS: Final = 2.0
"""Days that windows span before a daily swing is looked for: once is not daily."""

LEAST_OF_SWING: Final = 12
"""Windows for a daily swing: two days of six, or six days of two."""

MOST_OF_DAY_UNSEEN: Final = 0.5
"""Share of the day in which no window may lie: over less than half a day a swing cannot be separated from a drift."""

SAME_WINDOW: Final = 0.25
"""Share of the least time between two windows by which the windows of two ranks may begin apart and be the same one."""
