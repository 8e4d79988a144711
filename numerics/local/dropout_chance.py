"""How likely two independent draws are to drop the same elements."""

from math import log10

from numerics.thresholds.local import REPEATED_BY_CHANCE


def certain(elements: int, chance: float, pairs: int) -> bool:
    """Return whether no two of so many pairs of draws agree on so many elements by chance."""
    return elements * agreement(chance) + log10(max(pairs, 1)) < REPEATED_BY_CHANCE


def agreement(chance: float) -> float:
    """Return the decimal logarithm of the chance that two draws agree on an element: both keep it or both drop it."""
    return log10(chance * chance + (1 - chance) * (1 - chance))
