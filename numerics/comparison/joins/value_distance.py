"""Distances between floating-point arrays: units in the last place, relative error, cosine."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numerics.thresholds.comparison import DISTANCE_CHUNK

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ValueDistance:
    """Distance of a from b: relative error |a - b| / |b|, cosine, and `ratio` <a,b>/<b,b>; None where undefined.

    `max_ulp` is the most numbers of the format that lie between two elements; None for integers and mixed types.
    """

    max_ulp: float | None
    rel: float | None
    cosine: float | None
    ratio: float | None


def ordered(values: Array) -> Array:
    """Return integers in the order of floating-point numbers of 16, 32 or 64 bits, so that neighbours differ by 1."""
    width = values.dtype.itemsize
    bits = values.view({2: np.int16, 4: np.int32, 8: np.int64}[width]).astype(np.int64)
    lowest = -(1 << (8 * width - 1))
    return np.where(bits < 0, lowest - bits, bits)


def value_distance(a: Array, b: Array, *, bfloat16: bool = False) -> ValueDistance:
    """Return the distance of two flat arrays of equal length.

    `bfloat16` says that both hold bfloat16 numbers widened to float32.
    """
    ulp = 0.0
    dot = aa = bb = dd = 0.0
    floats = a.dtype == b.dtype and a.dtype.kind == "f"
    for start in range(0, len(a), DISTANCE_CHUNK):
        x, y = a[start : start + DISTANCE_CHUNK], b[start : start + DISTANCE_CHUNK]
        if floats:
            gap = np.abs(ordered(x).astype(np.float64) - ordered(y).astype(np.float64)).max(initial=0.0)
            ulp = max(ulp, float(gap) / (1 << 16 if bfloat16 else 1))
        with np.errstate(all="ignore"):
            x64, y64 = x.astype(np.float64), y.astype(np.float64)
            dot += float(x64 @ y64)
            aa += float(x64 @ x64)
            bb += float(y64 @ y64)
            gap64 = x64 - y64
            dd += float(gap64 @ gap64)
    return ValueDistance(
        max_ulp=ulp if floats else None,
        rel=_finite(math.sqrt(dd / bb)) if bb > 0 and math.isfinite(dd) else None,
        cosine=_finite(dot / math.sqrt(aa * bb)) if aa > 0 and bb > 0 else None,
        ratio=_finite(dot / bb) if bb > 0 else None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
