"""Thresholds of precision, each with its reason."""

from typing import Final

ADDITION_ERROR: Final = 0.44
"""RMS error of one rounded addition, over u times the RMS of its result.

A number's error is uniform within half a last place: u/√3 of its power of two. Averaged over the numbers between two
powers of two (mean square 2.16 to 7/3), that is 0.38 to 0.39. The sum of two numbers of one format has only d
bits too many, and ties among them: its mean square error is 1 + 2·4^-d times as large, 1.5 times for one bit. So the
factor lies between 0.39 and 0.48; running sums of 2 to 128 gradients showed 0.43 to 0.46.
"""

BUDGET: Final = 2.0
"""Error of a BF16 buffer, in errors of a single rounding, from which it needs FP32. Two addends cost 1.1 times,
four 1.6, sixteen three times."""

STEEP: Final = 0.5
"""Least slope of rounding: log of the distances' ratio over log of the roundoffs' ratio. Rounding has about 1 (0.87 to
0.99 seen), a bug 0. Half way lets rounding fall with its square root only, and finds a bug of that size in FP64."""

FLOOR: Final = 1024
"""A distance of so many roundoffs of the finest format is rounding, whatever the coarser rung says (a tensor may be
equal there by accident): tens of roundoffs are seen in shallow models, and a bug is millions of them."""

LEAST_RATIO: Final = 1e-30
"""Least ratio of two distances to take the logarithm of."""

MOST_BUDGET: Final = 1e9
"""Budget of `numerics advise`: BF16 has eight bits, so that no sum is worth this many roundings."""
