"""Finds ranks that get slower than their peers over windows.

It follows a rank's own time beyond the median of the peers that do the same work, as `slowrank` compares them: work
that communication stretches or that the data dealt is not of its own doing. If two ranks drift apart, the answer
names the one with the rising own time.
"""

import numpy as np

from tracekit.analysis.trend.change_points import levels
from tracekit.analysis.trend.judge import Judged, judged, trends
from tracekit.analysis.trend.series import OWN_PARTS, Series
from tracekit.analysis.trend.significance import line_of
from tracekit.findings.trend import RankTrend, Trend
from tracekit.mesh import Mesh
from tracekit.steps.steps import F64
from tracekit.store import Run
from tracekit.thresholds.trend import OWN_SHARE


def rank_trends(run: Run, mesh: Mesh, series: Series, least: float) -> tuple[RankTrend, ...]:
    """Return the trend of each rank that has peers in two windows or more; slowing ranks first, then by change."""
    rows = [i for i in range(len(series.ranks)) if np.isfinite(series.beyond[i]).sum() > 1]
    each = [judged(series, series.beyond[i], least) for i in rows]
    tested = trends([f"rank {series.ranks[i]}" for i in rows], each)
    found = [_ranked(run, mesh, series, i, s, t, least) for i, s, t in zip(rows, each, tested, strict=True)]
    return tuple(sorted(found, key=lambda r: (not r.slower, -r.trend.rise_ns, -r.trend.drift_ns, r.rank)))


def _ranked(
    run: Run, mesh: Mesh, series: Series, row: int, s: Judged, trend: Trend, least: float
) -> RankTrend:
    rank = series.ranks[row]
    coords = {axis: at for axis, at in mesh.coords(rank).items() if mesh.size(axis) > 1}
    host = next((r.host for r in run.ranks if r.rank == rank), None)
    places = list(s.places)
    rises = [_rise(trend, s, part[places]) for part in series.parts[row]]
    own = _rise(trend, s, series.own[row, places])
    slower = trend.rise_ns >= least and own >= OWN_SHARE * trend.rise_ns
    part = OWN_PARTS[int(np.argmax(rises))]
    held = (_known(series.own[row]), _known(series.beyond[row]))
    return RankTrend(rank, host, coords, trend, part, slower, *held)


def _rise(trend: Trend, s: Judged, values: F64) -> float:
    """Return the rise of `values` in the same shape: along the line, or up to the highest level; ns."""
    if trend.shape == "change":
        return _rise_of_levels(levels(s.values, s.cuts), levels(values, s.cuts))
    return line_of(s.times, values).slope * float(np.ptp(s.times))


def _rise_of_levels(told: list[float], other: list[float]) -> float:
    highest = 1 + int(np.argmax(told[1:]))
    return other[highest] - other[0]


def _known(values: F64) -> tuple[float | None, ...]:
    return tuple(float(v) if np.isfinite(v) else None for v in values)
