"""When a replayed run counts as steady."""

from typing import Final

DRIFT_SHARE: Final = 0.005
"""Ranks with equally long steps, to within this share of the step, no longer drift apart in a replay."""

MOST_REPEATS: Final = 4
"""So often at most is a run of steps repeated in a replay; ranks that no wait joins may drift apart forever."""

ANSWERED_NS: Final = 5_000
"""A collective that begins within this time of the end of another one, and could have begun long before, waited for it:
an event between two streams takes a few microseconds."""
