"""Linear relations between a wrong tensor and right ones: factor, missing or doubled addend, constant shift.

The vectors represent tensors: the values if they were kept, else the sketches, which are linear too. Callers give
the tolerance, so that no relation is claimed that rounding could have made.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from numerics.thresholds.comparison import MAX_PAIRED_ADDENDS, NO_DIVISOR
from tracekit.axes import AXES

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Factor:
    """a = value · b up to `residual`: the norm of a - value · b over the norm of a."""

    value: float
    residual: float


def factor(a: Vector, b: Vector) -> Factor | None:
    """Return the best factor between two vectors (least squares); None where b is 0 or a number is not finite."""
    with np.errstate(all="ignore"):
        power = float(b @ b)
        if not math.isfinite(power) or power == 0:
            return None
        value = float(a @ b) / power
        size = float(np.linalg.norm(a))
        if not math.isfinite(value) or not math.isfinite(size) or size == 0:
            return None
        return Factor(value, float(np.linalg.norm(a - value * b)) / size)


def addends(difference: Vector, candidates: Sequence[Vector], tolerance: float) -> tuple[float, ...] | None:
    """Return the weights of candidate addends that add up to a difference; None where none do, or not uniquely.

    `tolerance` bounds the residual over the norm of the difference. The simplest combination wins: one addend,
    then two, then all.
    """
    size = float(np.linalg.norm(difference))
    if not candidates or not math.isfinite(size) or size == 0:
        return None
    stacked = np.stack(candidates, axis=1)
    if not np.isfinite(stacked).all():
        return None
    count = stacked.shape[1]
    choices: list[tuple[int, ...]] = [(i,) for i in range(count)]
    if count <= MAX_PAIRED_ADDENDS:
        choices += list(combinations(range(count), 2))
    choices.append(tuple(range(count)))
    fits = []
    for chosen in choices:
        if len(chosen) * 2 > len(difference):
            continue
        part = stacked[:, chosen]
        weights, _, rank, _ = np.linalg.lstsq(part, difference, rcond=None)
        left = float(np.linalg.norm(part @ weights - difference)) / size
        if rank == len(chosen) and left <= tolerance:
            fits.append((len(chosen), left, chosen, weights))
    if not fits:
        return None
    _, _, chosen, weights = min(fits, key=lambda f: (f[0], f[1]))
    found = [0.0] * count
    for at, weight in zip(chosen, weights, strict=True):
        found[at] = float(weight)
    return tuple(found)


def near(value: float, target: float, tolerance: float) -> bool:
    """Return whether a number equals a target within a relative tolerance."""
    return abs(value - target) <= tolerance * max(abs(target), NO_DIVISOR)


def named_factor(
    value: float, sizes: Mapping[str, int], tolerance: float, likely: str | None = None
) -> tuple[str, list[str]] | None:
    """Return a factor in words where sizes of the run explain it, and the names of these sizes.

    `sizes` maps names (axes, "micro-batches", "valid tokens") to numbers; of several that fit, `likely` wins.
    None where nothing fits.
    """
    several = {name: n for name, n in sizes.items() if n > 1}
    fits = _matching(value, tolerance, _of_one_size(several)) or _matching(
        value, tolerance, _of_two_sizes(several)
    )
    if fits:
        words, names = next(iter(fits.items()))
        names = [likely] if likely is not None and likely in names else names
        size = "the size of " if names[0].split(" ")[0] in AXES else ""
        return f"{words}, {size}{' or '.join(names)}", names
    if near(value, -1, tolerance):
        return "-1: its sign is turned", []
    return None


def _matching(
    value: float, tolerance: float, targets: Iterator[tuple[str, str, float]]
) -> dict[str, list[str]]:
    """Return the names of sizes with a target equal to the value, by the target's words."""
    fits: dict[str, list[str]] = {}
    for name, words, target in targets:
        if near(value, target, tolerance):
            fits.setdefault(words, []).append(name)
    return fits


def _of_one_size(sizes: Mapping[str, int]) -> Iterator[tuple[str, str, float]]:
    """Yield (name, words, factor) of the factors that one size makes."""
    for name, n in sizes.items():
        yield name, f"{n}", n
        yield name, f"1/{n}", 1 / n
        yield name, f"sqrt({n})", math.sqrt(n)
        yield name, f"1/sqrt({n})", n**-0.5


def _of_two_sizes(sizes: Mapping[str, int]) -> Iterator[tuple[str, str, float]]:
    """Yield (names, words, factor) of the factors that two sizes make."""
    for (one, n), (two, k) in combinations(sizes.items(), 2):
        names = f"{one} and {two}"
        yield names, f"{n * k}", n * k
        yield names, f"1/{n * k}", 1 / (n * k)
        yield names, f"{n}/{k}", n / k
        yield names, f"{k}/{n}", k / n


def named_logarithm(
    value: float, sizes: Mapping[str, int], tolerance: float, likely: str | None = None
) -> tuple[str, str | None] | None:
    """Return a constant in words where it is ± log of a size, and the size's name where only one fits.

    A sum of exponentials over copies leaves such a constant. None where nothing fits.
    """
    names = [
        name
        for name, n in sizes.items()
        if n > 1 and abs(abs(value) - math.log(n)) <= tolerance * math.log(n)
    ]
    if not names:
        return None
    names = [likely] if likely is not None and likely in names else names
    n = sizes[names[0]]
    return f"{'+' if value > 0 else '-'} log {n}, the size of {' or '.join(names)}", (
        names[0] if len(names) == 1 else None
    )
