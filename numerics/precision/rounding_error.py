"""Expected rounding error of a running sum, relative: Euclidean norm of the error over that of the result."""

import math

from numerics.formats import unit_roundoff
from numerics.thresholds.precision import ADDITION_ERROR


def running_sum_error(squares_of_sums: float, square_of_last: float, dtype: str) -> float:
    """Return the expected relative error of a running sum s_m that is rounded after each of its additions.

    `squares_of_sums` is Σ_{k≥2} ‖s_k‖² over the elements that an addition changed (adding to or from zero is exact);
    `square_of_last` is ‖s_m‖². The errors of the additions are taken as independent:
    ADDITION_ERROR·u·√(Σ_{k≥2} ‖s_k‖²)/‖s_m‖; 0 for a single addend, NaN where the sum is 0. KeyError for formats
    without a unit roundoff.
    """
    if not square_of_last > 0:
        return math.nan
    return ADDITION_ERROR * unit_roundoff(dtype) * math.sqrt(squares_of_sums / square_of_last)
