"""Thresholds from which kernels count as following the data; each with its reason."""

from typing import Final

WHIM: Final = 1.0
"""Relative deviation beyond which a kernel had an accident of its own: documents only halve or double its work."""

RANKS_READ: Final = 64
"""Most ranks to read kernels of for it: a dozen replicas of a pipeline show the effect of the data on all."""

LEAST_LENGTH: Final = 0.1
"""Least share of its usual length that a kernel is taken to last: documents do not cause a factor of ten."""
