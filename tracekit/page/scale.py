"""The one scale of colours and lengths: it never ends below what a verdict counts, so that chance looks calm."""

from dataclasses import asdict, dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Scale:
    """Ends of a scale in the unit of its values, and the size up to which a value stays pale."""

    low: float
    high: float
    pale: float

    def document(self) -> dict[str, float]:
        """Return the scale as the script reads it."""
        return asdict(self)


def _size(value: float) -> float:
    """Return a threshold or an end; 0 where it is not known."""
    return value if isfinite(value) else 0.0


def scale_of(values: npt.ArrayLike, threshold: float) -> Scale:
    """Return the scale of values around 0: to each side that has values as far as they reach, and to the threshold.

    Unknown values (NaN) do not count.
    """
    threshold = _size(threshold)
    known = np.asarray(values, np.float64).ravel()
    known = known[np.isfinite(known)]
    low, high = float(known.min(initial=0.0)), float(known.max(initial=0.0))
    return Scale(min(low, -threshold) if low < 0 else 0.0, max(high, threshold), threshold)


def span_of(values: npt.ArrayLike, threshold: float) -> Scale:
    """Return a scale around the median of the values that holds them all, and changes of the threshold both ways."""
    threshold = _size(threshold)
    known = np.asarray(values, np.float64).ravel()
    known = known[np.isfinite(known)]
    middle = float(np.median(known)) if known.size else 0.0
    return Scale(
        min(middle - threshold, float(known.min(initial=middle))),
        max(middle + threshold, float(known.max(initial=middle))),
        threshold,
    )


def whole(end: float) -> Scale:
    """Return a scale from 0 to the whole of something, as of a step: no part of it is pale by itself."""
    return Scale(0.0, _size(end), 0.0)
