"""The page of `tracekit breakdown`: the parts of the step by rank and step, and what each axis moved."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tracekit.findings import BreakdownFinding, RankBreakdown, Share, TimeParts
from tracekit.findings.picture import F64
from tracekit.report.breakdown_text import foundations, headline, sent_text, traffic_cells
from tracekit.report.html.cells import blocks_of, columns_of, rounded, steps_text
from tracekit.report.html.page import below, render
from tracekit.text import plain
from tracekit.thresholds.report import PAGE_ROWS
from tracekit.units import ms


def breakdown_html(finding: BreakdownFinding) -> str:
    """Return the page as text; the same finding gives the same bytes."""
    title = headline(finding)
    return render(
        "breakdown.html.j2",
        _data(finding),
        title=f"BREAKDOWN: {title}",
        verdict="",
        word="BREAKDOWN",
        headline=title,
        **below(foundations(finding, verbose=True)),
        shares=[_share(s) for s in finding.shares],
        traffic=[(t.axis, t.op, t.members, *traffic_cells(t)) for t in finding.traffic[:PAGE_ROWS]],
        volumes=[
            (f"{v.axis} {v.what}", sent_text(v), f"{v.formula}: {v.scheme}")
            for v in finding.volumes[:PAGE_ROWS]
        ],
    )


def _share(share: Share) -> tuple[str, ...]:
    spread = (f"{x:.1%}" for x in (share.share, share.least, share.median, share.most))
    return (share.part, f"{ms(share.mean_ns):.3f}", *spread)


def _data(finding: BreakdownFinding) -> dict[str, Any]:
    """The data that the script draws; times in ms, rounded to 1 µs."""
    ranks = sorted(finding.by_rank, key=lambda r: r.rank)
    steps = sorted({cell.step for cell in finding.cells})
    blocks = blocks_of(steps, max(len(ranks), 1))
    named = [_named(r.parts, max(r.steps, 1)) for r in ranks]
    kinds = list(dict.fromkeys(kind for parts in named for kind, spent in parts.items() if spent))
    return {
        "ranks": [r.rank for r in ranks],
        "hosts": [None if r.host is None else plain(r.host) for r in ranks],
        "places": _places(ranks),
        "named": [],
        "steps": [steps_text(steps, block) for block in blocks],
        "maps": {what: columns_of(cells, blocks) for what, cells in _cells(finding, ranks, steps).items()},
        "parts": {plain(kind): rounded(np.array([p.get(kind, 0.0) for p in named])) for kind in kinds},
    }


def _places(ranks: Iterable[RankBreakdown]) -> dict[str, list[int]]:
    """The index of each rank by axis; -1 where it is unknown."""
    axes = dict.fromkeys(axis for r in ranks for axis in r.coords)
    return {axis: [r.coords.get(axis, -1) for r in ranks] for axis in axes}


def _named(parts: TimeParts, steps: int) -> dict[str, float]:
    """The ms a step of each part by name; they add up to the step. Parts without time on all ranks are left out."""
    spent = {"compute": parts.compute_ns, "host": parts.host_ns, "bubble": parts.bubble_ns}
    for e in parts.exposed:
        spent[f"waits on {e.axis}"] = e.wait_ns
        spent[f"transfers on {e.axis}"] = e.transfer_ns
        spent["waits or transfers"] = spent.get("waits or transfers", 0) + e.open_ns
    spent |= {"idle": parts.idle_ns, "unknown": parts.unknown_ns}
    return {kind: ms(ns / steps) for kind, ns in spent.items()}


def _cells(finding: BreakdownFinding, ranks: Iterable[RankBreakdown], steps: list[int]) -> dict[str, F64]:
    """The heat maps by title: ms, one row a rank and one column a step; NaN where a step was not recorded whole."""
    row = {r.rank: i for i, r in enumerate(ranks)}
    column = {step: i for i, step in enumerate(steps)}
    stood, computed = (np.full((len(row), len(column)), np.nan) for _ in range(2))
    for cell in finding.cells:
        at, p = (row[cell.rank], column[cell.step]), cell.parts
        stood[at] = ms(p.waiting_ns + p.transfer_ns + p.open_ns + p.bubble_ns)
        computed[at] = ms(p.compute_ns)
    return {"stood still for communication": stood, "computed": computed}
