"""The page of `tracekit trend`: the step and its parts over time, and ranks beside their peers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracekit.findings.trend import RankTrend, TrendFinding
from tracekit.page.palette import fill_of
from tracekit.page.scale import scale_of, span_of, whole
from tracekit.page.shell import About
from tracekit.report.html.answer import answer_page
from tracekit.report.html.cells import number
from tracekit.report.slowrank_json import dumps
from tracekit.report.trend_json import trend_document
from tracekit.report.trend_text import changes_of, foundations, step_lines, word
from tracekit.text import plain, ranges
from tracekit.thresholds.report import LINES_DRAWN, PAGE_ROWS
from tracekit.thresholds.trend import LEAST_CHANGE
from tracekit.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MS, NS_PER_S, ms

_TONES = {"steady": "calm", "faster": "better", "inconclusive": "open"}


def trend_html(finding: TrendFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    ranks = finding.by_rank[:PAGE_ROWS]
    lines = [*step_lines(finding), *foundations(finding, verbose=False)]
    return answer_page(
        "trend.html.j2",
        word=word(finding),
        headline=_headline(finding),
        tone=_TONES.get(finding.verdict, "blames"),
        next_steps=[_next(finding)],
        lines=[line for line in lines if line[0] != "to decide"],
        document=("trend", dumps(trend_document(finding))),
        about=about,
        data={"trend": _data(finding)},
        scripts=("trend.js",),
        unit=finding.unit,
        threshold=f"{LEAST_CHANGE:.0%} of the step",
        step=changes_of([finding.step, *finding.parts]),
        ranks=[(*row, "yes" if r.slower else "no") for row, r in zip(_rows(ranks), ranks, strict=True)],
        left=len(finding.by_rank) - len(ranks),
        drawn=min(len(finding.by_rank), LINES_DRAWN),
    )


def _ranks_of(finding: TrendFinding) -> str:
    """Return the ranks that get slower than their peers; "" where none does."""
    return ranges(sorted(r.rank for r in finding.slower), LINES_DRAWN)


def _headline(finding: TrendFinding) -> str:
    """Return how the job changes, and which ranks get slower than their peers."""
    ranks = _ranks_of(finding)
    if not ranks or f"rank {ranks}" in finding.reason:
        return finding.reason
    named = f"ranks {ranks} get slower" if len(finding.slower) > 1 else f"rank {ranks} gets slower"
    return f"{finding.reason}; {named} than the peers"


def _next(finding: TrendFinding) -> str:
    """Return what to do about the course of the job."""
    if finding.to_decide:
        return finding.to_decide
    if finding.slower:
        return (
            f"check the machine of rank {_ranks_of(finding)}; "
            f"tracekit slowrank on the last {finding.unit} shows the price"
        )
    if finding.verdict in ("steady", "faster"):
        return "nothing to fix"
    if finding.verdict == "inconclusive":
        return f"record more {finding.unit}s"
    return f"tracekit diff of a {finding.unit} before the change and one after it shows what changed"


def _rows(ranks: tuple[RankTrend, ...]) -> list[tuple[str, ...]]:
    """Return rows of the table of ranks: the host stands behind the rank."""
    rows = changes_of([r.trend for r in ranks])
    return [
        (row[0] + (f" on {r.host}" if r.host else ""), *row[1:]) for row, r in zip(rows, ranks, strict=True)
    ]


def _data(finding: TrendFinding) -> dict[str, Any]:
    """Return what the script draws; times in ms, those of points in the unit of the axis."""
    names = dict.fromkeys(name for p in finding.points for name in p.parts)
    t = finding.step
    unit, per = _unit_of(finding)
    drawn = finding.by_rank[:LINES_DRAWN]
    parts = {
        name: [number(ms(p.parts.get(name, 0.0))) for p in finding.points]
        for name in names
        if any(p.parts.get(name) for p in finding.points)
    }
    return {
        "unit": finding.unit,
        "times": [number(p.at_ns / per) for p in finding.points],
        "title": f"{unit} after the first {finding.unit}",
        "names": [f"{finding.unit} {p.number}" for p in finding.points],
        "step": [number(ms(p.step_ns)) for p in finding.points],
        "levels": _levels(finding),
        "drift": [number(ms(t.begin_ns)), number(ms(t.begin_ns + t.drift_ns))]
        if t.shape == "drift"
        else None,
        "parts": [
            {"name": plain(name), "fill": fill_of(name), "ms": values} for name, values in parts.items()
        ],
        "ranks": [
            {
                "rank": r.rank,
                "slower": r.slower,
                "beyond": [None if v is None else number(ms(v)) for v in r.beyond_ns],
            }
            for r in drawn
        ],
        "scales": _scales(finding, [v for values in parts.values() for v in values if v is not None]),
    }


def _unit_of(finding: TrendFinding) -> tuple[str, int]:
    """Return the unit of the time axis, the largest of which the recording holds several, and its length, ns."""
    units = (("days", NS_PER_DAY), ("hours", NS_PER_HOUR), ("seconds", NS_PER_S))
    return next((unit for unit in units if finding.span_ns >= 2 * unit[1]), ("milliseconds", NS_PER_MS))


def _levels(finding: TrendFinding) -> list[dict[str, Any]]:
    """Return the levels between changes at once: first and last point, and the height, ms."""
    shifts = finding.step.shifts
    edges = [0, *(_place(finding, s.number) for s in shifts), len(finding.points)]
    heights = [shifts[0].before_ns, *(s.after_ns for s in shifts)] if shifts else []
    return [
        {"from": a, "to": b - 1, "ms": number(ms(h))}
        for a, b, h in zip(edges, edges[1:], heights, strict=False)
    ]


def _scales(finding: TrendFinding, parts: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return the scales of the three charts: each shows a change of the threshold as small as it is."""
    steps = np.array([ms(p.step_ns) for p in finding.points])
    threshold = LEAST_CHANGE * float(np.median(steps)) if steps.size else 0.0
    beyond = [ms(v) for r in finding.by_rank[:LINES_DRAWN] for v in r.beyond_ns if v is not None]
    return {
        "step": span_of(steps, threshold).document(),
        "parts": whole(max(parts, default=1.0)).document(),
        "ranks": scale_of([*beyond, -threshold], threshold).document(),
    }


def _place(finding: TrendFinding, found: int) -> int:
    """Return the place of the window of that number among the points."""
    return [p.number for p in finding.points].index(found)
