"""Thresholds from which kernels count as following the data; each with its reason."""

from typing import Final

RANKS_READ: Final = 64
"""Most ranks to read kernels of for it: a dozen replicas of a pipeline show the effect of the data on all."""
