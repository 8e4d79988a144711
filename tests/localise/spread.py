"""Whether one number of many stands out."""

import statistics

FACTOR = 3.5
"""Scaled deviations from the median beyond which a value stands out: Iglewicz and Hoaglin's bound."""
SCALE = 1.4826
"""From a median absolute deviation to a standard deviation."""


def stands_out(values: dict[int, float]) -> int | None:
    """The key of the largest value if it lies beyond the bound, else None."""
    if len(values) < 2:
        return None
    middle = statistics.median(values.values())
    spread = SCALE * statistics.median(abs(value - middle) for value in values.values())
    top = max(values, key=lambda key: values[key])
    return top if values[top] - middle > FACTOR * spread and values[top] > middle else None
