"""Separates a change of all devices alike, as of their clocks, from one that a rank, a link or the schedule makes."""

import numpy as np

from tracekit.analysis.trend.series import OWN_PARTS, Series
from tracekit.findings.trend import CommonChange
from tracekit.thresholds.trend import OWN_SHARE
from tracekit.units import F64


def common_change(series: Series, course: F64) -> CommonChange | None:
    """Return the change of compute of all ranks with the step; None if a rank has none, or not a similar share.

    course: the proven trend of the step at each point, ns. A rank's change is the slope of its compute over the course;
    each must be at least OWN_SHARE of the largest, and of the step's own share.
    """
    size = float(np.ptp(course))
    compute = series.parts[:, OWN_PARTS.index("compute")]
    known = np.isfinite(compute)
    if not size or not len(compute) or (known.sum(axis=1) <= 1).any():
        return None
    shares = np.array([_share(row[k], course[k], size) for row, k in zip(compute, known, strict=True)])
    least = OWN_SHARE * max(float(shares.max()), size / float(np.median(series.step)))
    return (
        None
        if shares.min() < least
        else CommonChange(*(float(f(shares)) for f in (np.median, np.min, np.max)))
    )


def _share(compute: F64, course: F64, size: float) -> float:
    """Return the change of compute over the whole course, as a share of its median; 0 if either never changes."""
    moved = course - course.mean()
    weight, level = float(moved @ moved), float(np.median(compute))
    return float(moved @ compute) / weight * size / level if weight and level else 0.0
