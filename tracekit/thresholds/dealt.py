"""Thresholds from which kernels count as following the data; each with its reason."""

from typing import Final

DEALT_SHARE: Final = 0.5
"""Share of the variance of kernels that ranks with the same data have in common: with less, most is chance."""

DEALT_Z: Final = 4.5
"""Standard errors that this share must exceed: as for a rank's excess, one false alarm in 300 000 normal trials."""

DEALT_ENTRIES: Final = 6
"""Independent entries from which the standard error of a share of variance is meaningful."""

UNTOUCHED: Final = 1 / 3
"""Kernels that do not follow the data vary by at most this share of the others' variation; a slow device slows both."""

WHIM: Final = 1.0
"""Relative deviation beyond which a kernel had an accident of its own: documents only halve or double its work."""

RANKS_READ: Final = 64
"""Most ranks to read kernels of for it: a dozen replicas of a pipeline show the effect of the data on all."""

SAME_LENGTH: Final = 0.2
"""Relative difference above which kernels of one name do different work: shapes double, document means do not."""

LEAST_LENGTH: Final = 0.1
"""Least share of its usual length that a kernel is taken to last: documents do not cause a factor of ten."""
