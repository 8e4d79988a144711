"""Prices just below the threshold: the model of a step is not exact enough to call such a cost harmless."""

from typing import Final

from tracekit.thresholds.slowrank import PRICE_DOUBT

NOT_EXACT: Final = "the model of the steps is not exact enough for a price so near the threshold"
"""The reason that such a price decides nothing."""


def may_cost_ns(price: float, longer: float) -> float:
    """Return the most that an excess of `longer` with that `price` may cost, ns a step; never more than the excess."""
    return min(PRICE_DOUBT * price, longer)
