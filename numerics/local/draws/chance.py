"""Chances: that differing rows all lie on one rank, and that two independent draws drop the same elements."""

from math import lgamma, log, log10

from numerics.thresholds.local import LONE_RANK_CHANCE, REPEATED_BY_CHANCE


def no_accident(own: int, every: int, wrong: int) -> bool:
    """Return whether `wrong` of `every` rows hardly fall all on one rank's `own` by chance.

    The chance is C(own, wrong) / C(every, wrong), taken by logarithms: binomials of thousands of rows are no floats.
    """
    if wrong > own:
        return True
    ways = lgamma(own + 1) - lgamma(own - wrong + 1) - lgamma(every + 1) + lgamma(every - wrong + 1)
    return ways < log(LONE_RANK_CHANCE)


def certain(elements: int, chance: float, pairs: int) -> bool:
    """Return whether no two of so many pairs of draws agree on so many elements by chance."""
    return elements * agreement(chance) + log10(max(pairs, 1)) < REPEATED_BY_CHANCE


def agreement(chance: float) -> float:
    """Return the decimal logarithm of the chance that two draws agree on an element: both keep it or both drop it."""
    return log10(chance * chance + (1 - chance) * (1 - chance))
