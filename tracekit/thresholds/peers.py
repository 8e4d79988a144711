"""Thresholds for comparing ranks with different roles and hosts: some load data, others wait."""

from typing import Final

THOSE_WHO_WAIT: Final = 75.0
"""Percentile of a stage's hidden waits that represents its waiting ranks: ranks held in step with the late one wait
as little as it does, and may be half of the stage."""
