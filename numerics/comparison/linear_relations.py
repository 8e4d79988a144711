"""Linear relations between a wrong tensor and right ones: factor, missing or doubled addend, constant shift.

Works on vectors that stand for tensors: the values where they were kept, else the sketches, which are linear too.
Every answer comes with its residual, and none is given that rounding could have made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]

ROUNDING: Final[Mapping[str, float]] = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}
"""Unit roundoff by format."""


def roundoff(dtype: str) -> float:
    """Unit roundoff of a format; integers have none, and get float64's."""
    return ROUNDING.get(dtype, 2.0**-53)


@dataclass(frozen=True)
class Factor:
    """a = value · b up to `residual`, the norm of what is left over the norm of a."""

    value: float
    residual: float


def factor(a: Vector, b: Vector) -> Factor | None:
    """Best factor between two vectors; None where b is nothing."""
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
    """Weights of candidate addends that make up a difference; None where they do not, or not uniquely.

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
    if count <= 24:
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
    """Whether a number equals a target within a relative tolerance."""
    return abs(value - target) <= tolerance * max(abs(target), 1e-300)


def named_factor(
    value: float, sizes: Mapping[str, int], tolerance: float, likely: str | None = None
) -> tuple[str, str | None] | None:
    """Words for a factor that a size of the run explains, and the size's name where only one fits.

    `sizes` maps names (axes, "micro-batches", "valid tokens") to numbers; of several that fit, `likely` wins.
    None where nothing fits.
    """
    several = {name: n for name, n in sizes.items() if n > 1}
    fits: dict[str, list[str]] = {}
    for name, n in several.items():
        for words, target in (
            (f"{n}", n),
            (f"1/{n}", 1 / n),
            (f"sqrt({n})", math.sqrt(n)),
            (f"1/sqrt({n})", n**-0.5),
        ):
            if near(value, target, tolerance):
                fits.setdefault(words, []).append(name)
    if not fits:
        for (one, n), (two, k) in combinations(several.items(), 2):
            for words, target in (
                (f"{n * k}", n * k),
                (f"1/{n * k}", 1 / (n * k)),
                (f"{n}/{k}", n / k),
                (f"{k}/{n}", k / n),
            ):
                if near(value, target, tolerance):
                    fits.setdefault(words, []).append(f"{one} and {two}")
    if fits:
        words, names = next(iter(fits.items()))
        names = [likely] if likely is not None and likely in names else names
        return f"{words}, {'the size of ' if names[0].split(' ')[0] in _AXES else ''}{' or '.join(names)}", (
            names[0] if len(names) == 1 else None
        )
    if near(value, -1, tolerance):
        return "-1: its sign is turned", None
    return None


_AXES: Final = ("tp", "cp", "pp", "dp")


def named_logarithm(
    value: float, sizes: Mapping[str, int], tolerance: float, likely: str | None = None
) -> tuple[str, str | None] | None:
    """Words for a constant that is ± log of a size, as left by a sum of exponentials over copies."""
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
