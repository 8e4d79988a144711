"""How far rounding alone may carry a sum: expected errors of running sums and of a single rounding.

Used by `advise` to say which gradient buffers need FP32, from figures of the run itself. All errors are relative:
the Euclidean norm of the error over that of the result.
"""

import math
from typing import Final

UNIT_ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Half the distance of 1 to the next number."""

HOP: Final = 0.44
"""RMS error of one rounded addition over u times the RMS of its result.

A number's error is uniform within half a last place: u/√3 of its power of two. Over the numbers between two powers of
two, of which the mean square is 2.16 to 7/3, that is 0.38 to 0.39. A sum of two numbers of one format has only d bits
too many, ties among them: its mean square error is 1 + 2·4^-d times as large, 1.5 times for one bit. So the factor lies
between 0.39 and 0.48; running sums of 2 to 128 gradients showed 0.43 to 0.46.
"""


def unit_roundoff(dtype: str) -> float:
    """Unit roundoff of a format by torch's name; KeyError where it has none."""
    return UNIT_ROUNDOFF[dtype]


def running_sum_error(squares_of_sums: float, square_of_last: float, dtype: str) -> float:
    """Expected relative error of a running sum s_m that is rounded after each of its additions.

    `squares_of_sums` is Σ_{k≥2} ‖s_k‖² over the elements that an addition changed (adding to or from zero is exact);
    `square_of_last` is ‖s_m‖². Errors of the additions are taken as independent:
    HOP·u·√(Σ_{k≥2} ‖s_k‖²)/‖s_m‖; 0 for a single addend, NaN where the sum is 0.
    """
    if not square_of_last > 0:
        return math.nan
    return HOP * unit_roundoff(dtype) * math.sqrt(squares_of_sums / square_of_last)
