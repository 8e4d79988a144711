"""How a job changes over windows as JSON: the contract `tracekit.trend/1`, its types and its writer. Times are ns."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from tracekit.findings.trend import RankTrend, Shape, Swing, Trend, TrendFinding, TrendUnit, TrendVerdict
from tracekit.report.documents import MeshDocument, Place, QualityDocument, RanksDocument
from tracekit.report.slowrank_json import mesh_document, quality_document, ranks_document

Ns = Annotated[int, Meta(description="nanoseconds")]


class PointDocument(TypedDict):
    """One window, or one step of the only one: medians over its steps; `parts` is by name, mean over ranks."""

    number: int
    at_ns: Ns
    steps: list[int]
    ranks: int
    step_ns: Ns
    parts: dict[str, int]


class ShiftDocument(TypedDict):
    """A change at once: the first window of the new level, its time, and both levels."""

    number: int
    at_ns: Ns
    before_ns: Ns
    after_ns: Ns


class TrendOfDocument(TypedDict):
    """One quantity over the windows; the chances account for all that were tested with it, null where too few."""

    what: str
    points: int
    level_ns: Ns
    begin_ns: Ns
    drift_ns: Ns
    low_ns: Ns
    high_ns: Ns
    p_drift: float | None
    shifts: list[ShiftDocument]
    p_change: float | None
    shape: Shape
    change_ns: Ns
    rise_ns: Ns


class RankTrendDocument(TypedDict):
    """One rank: the trend of its own time beyond its peers', which is also there by point, null where unknown."""

    rank: int
    host: str | None
    coords: Place
    trend: TrendOfDocument
    part: str
    slower: bool
    own_ns: list[int | None]
    beyond_ns: list[int | None]


class SwingDocument(TypedDict):
    """A wave of a day, from trough to peak; `peak_h` is in hours after the first window."""

    swing_ns: Ns
    peak_h: float
    p: float
    proven: bool


class CommonDocument(TypedDict):
    """Compute of all ranks changes with the step: the median, least and largest change as shares of 1."""

    share: float
    least: float
    most: float


class TrendDocument(TypedDict):
    """The answer of `tracekit trend`; ranks that get slower than their peers come first."""

    schema: Literal["tracekit.trend/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    unit: TrendUnit
    verdict: TrendVerdict
    reason: str
    to_decide: str | None
    points: list[PointDocument]
    step: TrendOfDocument
    swing: SwingDocument | None
    parts: list[TrendOfDocument]
    by_rank: list[RankTrendDocument]
    serial: Annotated[float, Meta(description="correlation of each window with the next one, 0 to 1")]
    quality: list[QualityDocument]
    notes: list[str]
    common: CommonDocument | None


def trend_document(finding: TrendFinding) -> TrendDocument:
    """Return the finding as a JSON-ready dict; times in whole ns."""
    return {
        "schema": "tracekit.trend/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": mesh_document(finding.mesh),
        "unit": finding.unit,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "to_decide": finding.to_decide,
        "points": [
            {
                "number": p.number,
                "at_ns": p.at_ns,
                "steps": list(p.steps),
                "ranks": p.ranks,
                "step_ns": round(p.step_ns),
                "parts": {name: round(ns) for name, ns in p.parts.items()},
            }
            for p in finding.points
        ],
        "step": _trend(finding.step),
        "swing": None if finding.swing is None else _swing(finding.swing),
        "parts": [_trend(t) for t in finding.parts],
        "by_rank": [_rank(r) for r in finding.by_rank],
        "serial": round(finding.serial, 6),
        "quality": [quality_document(q) for q in finding.quality],
        "notes": list(finding.notes),
        "common": None
        if (c := finding.common) is None
        else {
            "share": round(c.share, 6),
            "least": round(c.least, 6),
            "most": round(c.most, 6),
        },
    }


def _trend(trend: Trend) -> TrendOfDocument:
    return {
        "what": trend.what,
        "points": trend.points,
        "level_ns": round(trend.level_ns),
        "begin_ns": round(trend.begin_ns),
        "drift_ns": round(trend.drift_ns),
        "low_ns": round(trend.low_ns),
        "high_ns": round(trend.high_ns),
        "p_drift": trend.p_drift,
        "shifts": [
            {
                "number": s.number,
                "at_ns": s.at_ns,
                "before_ns": round(s.before_ns),
                "after_ns": round(s.after_ns),
            }
            for s in trend.shifts
        ],
        "p_change": trend.p_change,
        "shape": trend.shape,
        "change_ns": round(trend.change_ns),
        "rise_ns": round(trend.rise_ns),
    }


def _rank(rank: RankTrend) -> RankTrendDocument:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "coords": dict(rank.coords),
        "trend": _trend(rank.trend),
        "part": rank.part,
        "slower": rank.slower,
        "own_ns": _rounded(rank.own_ns),
        "beyond_ns": _rounded(rank.beyond_ns),
    }


def _swing(swing: Swing) -> SwingDocument:
    return {
        "swing_ns": round(swing.swing_ns),
        "peak_h": round(swing.peak_h, 3),
        "p": swing.p,
        "proven": swing.proven,
    }


def _rounded(values: Sequence[float | None]) -> list[int | None]:
    return [None if v is None else round(v) for v in values]
