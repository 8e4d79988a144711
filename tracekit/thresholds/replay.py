"""Thresholds for a replayed run to count as steady."""

from typing import Final

DRIFT_SHARE: Final = 0.005
"""Ranks with equally long steps, to within this share of the step, no longer drift apart in a replay."""

MOST_REPEATS: Final = 4
"""Most repetitions of a run of steps in a replay; ranks without waits for each other may drift apart forever."""

ANSWERED_NS: Final = 5_000
"""A collective that begins within this time of the end of another one, and could have begun long before, waited for it:
an event between two streams takes a few microseconds."""
