"""The chance that differing rows all lie on one rank."""

from math import lgamma, log

from numerics.thresholds.local import LONE_RANK_CHANCE


def no_accident(own: int, every: int, wrong: int) -> bool:
    """Return whether `wrong` of `every` rows hardly fall all on one rank's `own` by chance.

    The chance is C(own, wrong) / C(every, wrong), taken by logarithms: binomials of thousands of rows are no floats.
    """
    if wrong > own:
        return True
    ways = lgamma(own + 1) - lgamma(own - wrong + 1) - lgamma(every + 1) + lgamma(every - wrong + 1)
    return ways < log(LONE_RANK_CHANCE)
