"""Bisection: the value at which a condition turns true, by which studies fit one constant."""

from collections.abc import Callable


def bisect(above: Callable[[float], bool], low: float, high: float, steps: int = 24) -> float:
    """Return the value between `low` and `high` at which `above` turns from false to true, after `steps` halvings."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2
