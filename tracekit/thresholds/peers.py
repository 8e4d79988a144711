"""Thresholds for comparing ranks with different roles and hosts: some load data, others wait."""

from typing import Final

HIDDEN_BY_GAPS: Final = 3.0
"""Standard errors of shorter gaps beside longer compute, from which the host's lead may hide a slow device: work that
was launched long before costs it only what its queue holds. Chance exceeds this on one rank in 700."""

THOSE_WHO_WAIT: Final = 75.0
"""Percentile of a stage's hidden waits that represents its waiting ranks: ranks held in step with the late one wait
as little as it does, and may be half of the stage."""
