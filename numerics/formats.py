"""Number formats by torch's name, and their unit roundoff."""

from typing import Final

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
