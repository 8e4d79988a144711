"""The page of `tracekit trend`: the step and its parts over time, and ranks beside their peers."""

from typing import Any

from tracekit.findings.trend import RankTrend, TrendFinding
from tracekit.report.html.cells import number
from tracekit.report.html.page import below, render
from tracekit.report.trend_text import changes_of, foundations, step_lines, word
from tracekit.text import plain
from tracekit.thresholds.report import LINES_DRAWN, PAGE_ROWS
from tracekit.units import NS_PER_HOUR, ms


def trend_html(finding: TrendFinding) -> str:
    """Return the page as text; the same finding gives the same bytes."""
    ranks = finding.by_rank[:PAGE_ROWS]
    return render(
        "trend.html.j2",
        {"trend": _data(finding)},
        title=f"{word(finding)}: {finding.reason}",
        verdict=finding.verdict,
        word=word(finding),
        headline=finding.reason,
        **below([*step_lines(finding), *foundations(finding, verbose=False)]),
        unit=finding.unit,
        step=changes_of([finding.step, *finding.parts]),
        ranks=[(*row, "yes" if r.slower else "no") for row, r in zip(_rows(ranks), ranks, strict=True)],
        left=len(finding.by_rank) - len(ranks),
        drawn=min(len(finding.by_rank), LINES_DRAWN),
    )


def _rows(ranks: tuple[RankTrend, ...]) -> list[tuple[str, ...]]:
    """The rows of the table of ranks; the host follows the rank."""
    rows = changes_of([r.trend for r in ranks])
    return [
        (row[0] + (f" on {r.host}" if r.host else ""), *row[1:]) for row, r in zip(rows, ranks, strict=True)
    ]


def _data(finding: TrendFinding) -> dict[str, Any]:
    """The data that the script draws; times in ms, begins of windows in hours."""
    names = dict.fromkeys(name for p in finding.points for name in p.parts)
    t = finding.step
    edges = [0, *(_place(finding, s.number) for s in t.shifts), len(finding.points)]
    heights = [t.shifts[0].before_ns, *(s.after_ns for s in t.shifts)] if t.shifts else []
    return {
        "unit": finding.unit,
        "hours": [number(p.at_ns / NS_PER_HOUR) for p in finding.points],
        "names": [f"{finding.unit} {p.number}" for p in finding.points],
        "step": [number(ms(p.step_ns)) for p in finding.points],
        "levels": [
            {"from": a, "to": b - 1, "ms": number(ms(h))}
            for a, b, h in zip(edges, edges[1:], heights, strict=False)
        ],
        "drift": [number(ms(t.begin_ns)), number(ms(t.begin_ns + t.drift_ns))]
        if t.shape == "drift"
        else None,
        "parts": {
            plain(name): [number(ms(p.parts.get(name, 0.0))) for p in finding.points]
            for name in names
            if any(p.parts.get(name) for p in finding.points)
        },
        "ranks": [
            {
                "rank": r.rank,
                "slower": r.slower,
                "beyond": [None if v is None else number(ms(v)) for v in r.beyond_ns],
            }
            for r in finding.by_rank[:LINES_DRAWN]
        ],
    }


def _place(finding: TrendFinding, found: int) -> int:
    """The index of the window with that number among the points."""
    return [p.number for p in finding.points].index(found)
