"""Number formats by torch's name, and their unit roundoff."""

from typing import Final

from numerics.thresholds.local import REWRITTEN_MEAN, REWRITTEN_ROUNDINGS, REWRITTEN_SPREAD

UNIT_ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Half the distance from 1 to the next larger number of the format."""


def unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a format. KeyError for integers and unknown formats."""
    return UNIT_ROUNDOFF[dtype]


def least_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a format, that of float64 for integers, which are summed exactly."""
    return UNIT_ROUNDOFF.get(dtype, UNIT_ROUNDOFF["float64"])


def most_rewritten(apart: float, size: float, roundoff: float, count: int) -> float:
    """Return how far an element of a rewritten formula may be off; 0 if the mean error is larger than that.

    `apart` and `size` are the root mean squares of `count` misses and of the right values.
    """
    mean = REWRITTEN_MEAN * (1 + REWRITTEN_SPREAD / max(count, 1) ** 0.5) * roundoff * size
    return REWRITTEN_ROUNDINGS * roundoff * size if apart <= mean else 0.0
