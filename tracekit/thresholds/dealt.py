"""From when kernels count as following the data that ranks were dealt; each with its reason."""

from typing import Final

DEALT_SHARE: Final = 0.5
"""Share of the variance of kernels that ranks with the same data have in common: with less, most is chance."""

DEALT_Z: Final = 4.5
"""Standard errors that this share must clear: as those of a rank's excess, one false alarm in 300 000 normal trials."""

DEALT_ENTRIES: Final = 6
"""Independent entries from which a share of variance has a standard error at all that means something."""

UNTOUCHED: Final = 1 / 3
"""Kernels that follow no data vary by at most this share of what the others do: a slow device slows them as well."""

WHIM: Final = 1.0
"""A kernel off by more than its own usual length is an accident of it, and no document: those halve or double work."""

RANKS_READ: Final = 64
"""Most ranks to read kernels of for it: a dozen replicas of a pipeline show the effect of the data on all."""

SAME_LENGTH: Final = 0.2
"""Share by which two kernels of one name differ that do other work: shapes double, means of few documents do not."""

LEAST_LENGTH: Final = 0.1
"""Share of its usual length below which no kernel is taken to last: a factor of ten is no document's doing."""
