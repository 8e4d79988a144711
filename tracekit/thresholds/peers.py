"""Bounds for comparing ranks that do not all do the same: some load data, and hosts come and go."""

from typing import Final

HIDDEN_BY_GAPS: Final = 3.0
"""Standard errors by which gaps are shorter where compute is longer, from which the host's lead may hide the device:
work that was launched long before costs a slow device only what its queue holds. Chance does so on one rank in 700."""

THOSE_WHO_WAIT: Final = 75.0
"""Percentile of a stage's hidden waits that represents its waiting ranks: ranks held in step with the late one wait
as little as it does, and may be half of the stage."""
