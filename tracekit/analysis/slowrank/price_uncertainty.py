"""Prices just below the threshold: the model of a step is not exact enough to call what they price harmless."""

from typing import Final

from tracekit.thresholds.slowrank import PRICE_DOUBT

NOT_EXACT: Final = "the model of the steps is not exact enough for a price so near the threshold"
"""Why such a price decides nothing."""


def may_cost_ns(price: float, longer: float) -> float:
    """The most that something of that `price` may cost, ns a step, which lasts `longer` than its peers.

    Nothing costs more than it lasts longer.
    """
    return min(PRICE_DOUBT * price, longer)
